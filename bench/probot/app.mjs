// An app that does nothing, for `probot run`, which is how Probot is deployed.
export default (app) => app.on("issue_comment.created", () => {});
