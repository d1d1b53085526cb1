"""The dashboard at `/`: the API's lists and changes as pages, for a browser that signed in with the ADMIN_TOKEN."""
