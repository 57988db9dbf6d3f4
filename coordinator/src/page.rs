//! The page for people: files that a browser fills from the public HTTP interface.
//!
//! The files are part of the program: nothing is fetched from another host. They have no cookies,
//! no inline script and no inline style, and a content security policy that allows none. The views'
//! addresses all answer with the same document; its script reads the address.

use std::io::{Read as _, Write as _};
use std::sync::OnceLock;

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

/// Where the page may load from: this origin alone. `wasm-unsafe-eval` allows WebAssembly, and no
/// text as a script.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self' \
    'wasm-unsafe-eval'; worker-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
    trusted-types florin-page";

/// The addresses of the views.
const VIEWS: [&str; 6] = [
    "/",
    "/tasks/{id}",
    "/tasks/{id}/rounds/{round}",
    "/accounts",
    "/accounts/{address}",
    "/compute",
];

/// A file with its compressed form.
struct Asset {
    name: &'static str,
    media_type: &'static str,
    bytes: Vec<u8>,
    compressed: Vec<u8>,
    /// A digest of the bytes, in quotation marks.
    etag: String,
}

impl Asset {
    fn new(name: &'static str, media_type: &'static str, bytes: Vec<u8>) -> Self {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let compressed = encoder.write_all(&bytes).and_then(|()| encoder.finish());
        // An empty form is never sent: see `response`.
        Self::with_compressed(name, media_type, bytes, compressed.unwrap_or_default())
    }

    /// A file whose compressed form is known.
    fn with_compressed(
        name: &'static str,
        media_type: &'static str,
        bytes: Vec<u8>,
        compressed: Vec<u8>,
    ) -> Self {
        let etag = format!("\"{}\"", &blake3::hash(&bytes).to_hex()[..32]);
        Self { name, media_type, bytes, compressed, etag }
    }

    fn response(&'static self, headers: &HeaderMap) -> Response {
        let names = |name: &HeaderName, what: &str| {
            let value = headers.get(name).and_then(|value| value.to_str().ok());
            value.is_some_and(|value| value.split(',').any(|one| one.trim() == what))
        };
        let fixed = [
            (header::CONTENT_TYPE, self.media_type),
            (header::ETAG, self.etag.as_str()),
            (header::CACHE_CONTROL, "no-cache"),
            (header::VARY, "accept-encoding"),
            (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::X_FRAME_OPTIONS, "DENY"),
            (header::REFERRER_POLICY, "no-referrer"),
            (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        ];
        if names(&header::IF_NONE_MATCH, &self.etag) {
            return (StatusCode::NOT_MODIFIED, fixed).into_response();
        }
        if !self.compressed.is_empty() && names(&header::ACCEPT_ENCODING, "gzip") {
            let gzip = (header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            return (fixed, [gzip], self.compressed.as_slice()).into_response();
        }
        (fixed, self.bytes.as_slice()).into_response()
    }
}

macro_rules! script {
    ($name:literal) => {
        Asset::new(
            $name,
            "text/javascript; charset=utf-8",
            include_bytes!(concat!("../page/assets/", $name)).to_vec(),
        )
    };
}

fn assets() -> &'static [Asset] {
    static ASSETS: OnceLock<Vec<Asset>> = OnceLock::new();
    ASSETS.get_or_init(|| {
        let style = florin_charts::style_sheet() + include_str!("../page/assets/style.css");
        let wasm = include_bytes!("../page/assets/florin.wasm.gz");
        let mut module = Vec::new();
        if let Err(error) = GzDecoder::new(&wasm[..]).read_to_end(&mut module) {
            tracing::error!(%error, "the page's WebAssembly is damaged");
        }
        let index = include_bytes!("../page/assets/index.html");
        let operator = include_bytes!("../page/assets/operator.html");
        let icon = include_bytes!("../page/assets/icon.svg");
        vec![
            Asset::new("index.html", "text/html; charset=utf-8", index.to_vec()),
            Asset::new("operator.html", "text/html; charset=utf-8", operator.to_vec()),
            Asset::new("style.css", "text/css; charset=utf-8", style.into_bytes()),
            Asset::new("icon.svg", "image/svg+xml", icon.to_vec()),
            Asset::with_compressed("florin.wasm", "application/wasm", module, wasm.to_vec()),
            script!("account.js"),
            script!("api.js"),
            script!("bounded.js"),
            script!("compute.js"),
            script!("contracts.js"),
            script!("dom.js"),
            script!("ethereum.js"),
            script!("format.js"),
            script!("frame.js"),
            script!("main.js"),
            script!("market.js"),
            script!("money.js"),
            script!("operator.js"),
            script!("round.js"),
            script!("task.js"),
            script!("wallet.js"),
            script!("wasm.js"),
            script!("worker.js"),
        ]
    })
}

fn named(name: &str) -> Option<&'static Asset> {
    assets().iter().find(|asset| asset.name == name)
}

/// Compressed bytes that a browser loads at most: all files, and the WebAssembly apart.
#[must_use]
pub fn transfer_bytes() -> (usize, usize) {
    let (module, files): (Vec<&Asset>, Vec<&Asset>) =
        assets().iter().partition(|asset| asset.name == "florin.wasm");
    let sum = |assets: Vec<&Asset>| assets.iter().map(|asset| asset.compressed.len()).sum();
    (sum(files), sum(module))
}

async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    match named(&name) {
        Some(asset) => asset.response(&headers),
        None => (StatusCode::NOT_FOUND, "the page has no such file\n").into_response(),
    }
}

async fn view(headers: HeaderMap) -> Response {
    match named("index.html") {
        Some(asset) => asset.response(&headers),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// The document with the status 404, for a browser; `None` for other clients.
pub(crate) fn not_found(headers: &HeaderMap) -> Option<Response> {
    let accept = headers.get(header::ACCEPT)?.to_str().ok()?;
    if !accept.split(',').any(|one| one.trim().starts_with("text/html")) {
        return None;
    }
    let mut response = named("index.html")?.response(headers);
    if response.status() == StatusCode::OK {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    Some(response)
}

async fn operator_view(headers: HeaderMap) -> Response {
    match named("operator.html") {
        Some(asset) => asset.response(&headers),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// The routes of the operator's page.
pub(crate) fn operator_router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/", get(operator_view)).route("/page/{file}", get(file))
}

/// The routes of the page: its views, and its files below `/page`.
pub fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let views = VIEWS.iter().fold(Router::new(), |router, path| router.route(path, get(view)));
    views.route("/page/{file}", get(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn every_file_is_served_whole_compressed_and_not_again() {
        for asset in assets() {
            assert!(!asset.bytes.is_empty() && !asset.compressed.is_empty(), "{}", asset.name);
            let plain = asset.response(&HeaderMap::new());
            assert_eq!(plain.headers().get(header::CONTENT_ENCODING), None);
            let gzip = asset.response(&headers(header::ACCEPT_ENCODING, "br, gzip"));
            assert_eq!(gzip.headers()[header::CONTENT_ENCODING], "gzip");
            let again = asset.response(&headers(header::IF_NONE_MATCH, &asset.etag));
            assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
            for answer in [plain, gzip, again] {
                let policy = &answer.headers()[header::CONTENT_SECURITY_POLICY];
                assert_eq!(policy, CONTENT_SECURITY_POLICY);
                assert_eq!(answer.headers()[header::X_FRAME_OPTIONS], "DENY");
            }
        }
    }

    #[test]
    fn the_document_has_no_inline_script_and_no_other_host() {
        let text = std::str::from_utf8(&named("index.html").unwrap().bytes).unwrap();
        assert!(!text.contains("<style") && !text.contains("style=") && !text.contains(" on"));
        assert_eq!(
            text.matches("<script").count(),
            text.matches("<script type=\"module\" src=\"/page/").count()
        );
        for asset in assets().iter().filter(|asset| asset.name != "florin.wasm") {
            let text = std::str::from_utf8(&asset.bytes).unwrap();
            for host in ["http://", "https://"] {
                let others = text.matches(host).count()
                    - text.matches("http://www.w3.org/").count() * usize::from(host == "http://");
                assert_eq!(others, 0, "{} names {host}", asset.name);
            }
        }
    }

    #[test]
    fn the_page_is_small() {
        /// Compressed bytes of all files but the WebAssembly.
        const BYTES_MAX: usize = 200_000;
        let (bytes, _) = transfer_bytes();
        assert!(bytes < BYTES_MAX, "{bytes} bytes");
    }
}
