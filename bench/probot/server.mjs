// Probot as its documentation sets it up, with a handler that does nothing: `node server.mjs PROBOT_MODULE PORT`.
import { createServer } from "node:http";
import { pathToFileURL } from "node:url";

const [probotModule, port] = process.argv.slice(2);
const { Probot, createNodeMiddleware } = await import(pathToFileURL(probotModule).href);

const probot = new Probot({ githubToken: "unused", secret: process.env.WEBHOOK_SECRET, logLevel: "warn" });
const app = (on) => on.on("issue_comment.created", () => {});
const middleware = await createNodeMiddleware(app, { probot, webhooksPath: "/api/github/webhooks" });

createServer((request, response) => {
  middleware(request, response, () => response.writeHead(404).end());
}).listen(Number(port), "127.0.0.1");
process.on("SIGTERM", () => process.exit(0));
