//! The operator's page, on the listener of the metrics: their present values, behind a token.
//!
//! The token is a file in the data folder. A page of another host cannot send it: the script sends it
//! as a header of its own, and a browser adds it to no other request.

use std::io;
use std::path::{Path, PathBuf};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use florin_protocol::NodeSigner;
use serde_json::json;

use super::observe::{metrics_text, readiness};
use super::{App, self_signed};
use crate::page;

/// Name of the file with the token, in the data folder.
const TOKEN_FILE: &str = "operator-token";

/// The token of a coordinator: it follows from the secret node key, so that it survives restarts and
/// moves of the data folder.
fn token(node: &NodeSigner) -> String {
    let message = blake3::derive_key("florin v1 operator token", &node.key().0);
    let signature = node.sign_bytes(&message);
    let secret = blake3::derive_key("florin v1 operator token secret", &signature.0);
    blake3::Hash::from(secret).to_hex()[..32].to_owned()
}

/// Writes the token into the data folder, readable by its owner alone.
///
/// # Errors
/// Those of the file.
pub(crate) fn write_token(node: &NodeSigner, data: &Path) -> io::Result<PathBuf> {
    let path = data.join(TOKEN_FILE);
    self_signed::write(&path, &format!("{}\n", token(node)))?;
    Ok(path)
}

/// Whether a request has the token of this hash. The comparison of hashes takes the same time for all.
fn is_allowed(token: blake3::Hash, headers: &HeaderMap) -> bool {
    let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = value.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    blake3::hash(given.as_bytes()) == token
}

/// Readiness, the clock and the metrics.
async fn state(app: App, token: blake3::Hash, headers: HeaderMap) -> Response {
    if !is_allowed(token, &headers) {
        let message = "send the token of the file operator-token in the data folder";
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        let body = json!({"code": "OPERATOR_TOKEN_WRONG", "message": message});
        return (StatusCode::UNAUTHORIZED, challenge, Json(body)).into_response();
    }
    let metrics = match metrics_text(&app).await {
        Ok(text) => text,
        Err(why) => {
            let body = json!({"code": "METRICS_UNREADABLE", "message": why});
            return (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response();
        }
    };
    let ready = readiness(&app).await.err();
    let answer = json!({
        "not_ready": ready,
        "metrics": metrics,
        "connections_max": app.config().connections_max,
        "version": env!("CARGO_PKG_VERSION"),
    });
    ([(header::CACHE_CONTROL, "no-store")], Json(answer)).into_response()
}

/// The page and its data.
pub(super) fn router(node: &NodeSigner) -> Router<App> {
    let token = blake3::hash(token(node).as_bytes());
    let state = move |State(app): State<App>, headers: HeaderMap| state(app, token, headers);
    page::operator_router().route("/operator/state", get(state))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_token_follows_from_the_secret_key_alone() {
        let one = NodeSigner::from_seed(&[1; 32]);
        let dir = tempfile::tempdir().unwrap();
        let path = write_token(&one, dir.path()).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.trim(), token(&one));
        assert_eq!(text.trim().len(), 32);
        assert_ne!(token(&one), token(&NodeSigner::from_seed(&[2; 32])));
        write_token(&one, dir.path()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }
}
