//! Admission control: rate limits by address and by wallet, and the maximum body size.
//!
//! Any client can forge `X-Forwarded-For`. The header counts only on connections from a proxy in
//! `trusted_proxies`, and is read from its right end: each trusted proxy has appended the address
//! of its peer, so the first address that is not a trusted proxy is the sender's. Every address to
//! the left of it may be forged by the sender.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::HttpBody;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName};
use axum::middleware::Next;
use axum::response::Response;
use florin_protocol::{Address, ErrorCode};

use super::App;
use super::body::IncomingBody;
use super::error::{ApiError, ApiResult};
use super::listen::Peer;
use super::rate_limiter::GcraLimiter;
use super::request_head::check_head;
use crate::config::{Config, IpNetwork, rate_limit_address};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Proxies that a request may pass; beyond this the last one counts as the sender.
const HOPS_MAX: usize = 16;

/// The rate limiters of one server.
pub(super) struct RequestRateLimits {
    by_address: GcraLimiter<IpAddr>,
    by_wallet: GcraLimiter<Address>,
    fetches_by_provider: GcraLimiter<Address>,
    exempt: Vec<IpNetwork>,
    proxies: Vec<IpNetwork>,
    warned: AtomicBool,
}

impl RequestRateLimits {
    pub(super) fn from_config(config: &Config) -> Self {
        let rate = &config.rate;
        let (a, w, most) = (rate.address_per_second, rate.wallet_per_second, rate.entries_max);
        Self {
            by_address: GcraLimiter::new(a, rate.address_burst, most),
            by_wallet: GcraLimiter::new(w, rate.wallet_burst, most),
            fetches_by_provider: GcraLimiter::new(rate.fetch_per_second, rate.fetch_burst, most),
            exempt: rate.exempt.clone(),
            proxies: config.trusted_proxies.clone(),
            warned: AtomicBool::new(false),
        }
    }

    /// Counts a message against its wallet's rate. Call it only after the signature is verified:
    /// otherwise any client could use up another wallet's rate.
    pub(super) fn count_message(&self, wallet: Address) -> ApiResult<()> {
        self.by_wallet.check(wallet).map_err(|wait| {
            let ms = wait.as_millis();
            let message = format!("wallet {wallet} sends too many messages: retry in {ms} ms");
            ApiError::new(ErrorCode::RateLimited, message)
        })
    }

    /// Counts a blob fetch against the provider's rate. A round with a thousand updates has as many
    /// blobs, so fetches have a rate limit of their own.
    pub(super) fn count_fetch(&self, provider: Address) -> ApiResult<()> {
        self.fetches_by_provider.check(provider).map_err(|wait| {
            let ms = wait.as_millis();
            let message = format!("provider {provider} fetches too many blobs: retry in {ms} ms");
            ApiError::new(ErrorCode::RateLimited, message)
        })
    }

    /// The address that sent a request, if it has a rate limit: that of its network for an IPv6 address.
    pub(super) fn limited_sender(&self, request: &Request) -> Option<IpAddr> {
        let Peer(peer) = request.extensions().get::<Peer>()?;
        self.limited_address(*peer, request.headers()).map(rate_limit_address)
    }

    fn count_request(&self, peer: IpAddr, headers: &HeaderMap) -> ApiResult<()> {
        let Some(from) = self.limited_address(peer, headers) else {
            return Ok(());
        };
        self.by_address.check(rate_limit_address(from)).map_err(|wait| {
            let (from, ms) = (rate_limit_address(from), wait.as_millis());
            let message = format!("too many requests from {from}: retry in {ms} ms");
            ApiError::new(ErrorCode::RateLimited, message)
        })
    }

    /// The address whose rate limit applies; `None` if the sender is exempt. A forwarded request is
    /// never exempt: it does not originate in the proxy's network.
    fn limited_address(&self, peer: IpAddr, headers: &HeaderMap) -> Option<IpAddr> {
        let forwarded = headers.contains_key(FORWARDED_FOR);
        let from = client_address(peer, headers, &self.proxies);
        let exempt = self.exempt.iter().any(|network| network.contains(from));
        if exempt && forwarded && from == peer && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %peer,
                "requests with X-Forwarded-For arrive from an address that is not a trusted proxy \
                 and share one rate limit: add the proxy to trusted_proxies"
            );
        }
        (forwarded || !exempt).then_some(from)
    }
}

/// The sender of a request: the connection's peer, or, if that is a trusted proxy, the last address
/// in `X-Forwarded-For` that is not a trusted proxy. An entry that is not an address ends the
/// search: no entry to the left of it is trusted.
fn client_address(peer: IpAddr, headers: &HeaderMap, proxies: &[IpNetwork]) -> IpAddr {
    let trusted = |address: IpAddr| proxies.iter().any(|proxy| proxy.contains(address));
    let mut from = peer.to_canonical();
    let lines = headers.get_all(FORWARDED_FOR).iter().collect::<Vec<_>>();
    let hops = lines.iter().rev().flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    for hop in hops.take(HOPS_MAX) {
        if !trusted(from) {
            return from;
        }
        let Some(address) = std::str::from_utf8(hop).ok().and_then(|hop| address_of(hop.trim()))
        else {
            return from;
        };
        from = address;
    }
    from
}

/// Parses an address as proxies write it: bare, in brackets, or with a port.
fn address_of(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse().or_else(|_| text.parse().map(|at: SocketAddr| at.ip()));
    address.ok().map(|address: IpAddr| address.to_canonical())
}

/// Middleware that rejects requests above the rate limit, and bodies that exceed every route's
/// limit, before any other work.
pub(super) async fn limit_requests(
    State(app): State<App>,
    request: Request,
    next: Next,
) -> ApiResult<Response> {
    let peer = request.extensions().get::<Peer>();
    if let Some(Peer(peer)) = peer {
        app.rates().count_request(*peer, request.headers())?;
    }
    if let Err(error) = check_head(&request, peer.is_some()) {
        // Drain the body, so that the client receives the response.
        IncomingBody::new(request.into_body(), app.config(), 0).drain().await;
        return Err(error);
    }
    let limit = app.config().body_bytes_max();
    if request.body().size_hint().lower() > limit {
        let message = format!("the body's announced length exceeds body_mib_max = {limit} bytes");
        return Err(ApiError::new(ErrorCode::TooLarge, message));
    }
    Ok(next.run(request).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn headers(lines: &[&str]) -> HeaderMap {
        lines.iter().map(|line| (FORWARDED_FOR, line.parse().unwrap())).collect()
    }

    #[test]
    fn forwarded_for_counts_only_what_trusted_proxies_have_added() {
        let proxies = ["10.0.0.0/8", "2001:db8:ff::/48"].map(|text| text.parse().unwrap());
        let table: [(&str, &[&str], &str); 14] = [
            ("203.0.113.5", &[], "203.0.113.5"),
            ("203.0.113.5", &["198.51.100.1"], "203.0.113.5"),
            ("10.0.0.1", &["198.51.100.1"], "198.51.100.1"),
            ("::ffff:10.0.0.1", &["198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1", &["1.1.1.1, 198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1", &["1.1.1.1, 198.51.100.1, 10.0.0.2"], "198.51.100.1"),
            ("10.0.0.1", &["1.1.1.1", "198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1", &["1.1.1.1, 10.9.9.9, 198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1", &["198.51.100.1:4711"], "198.51.100.1"),
            ("10.0.0.1", &["1.1.1.1, [2001:db8::7]:443, 2001:db8:ff::1"], "2001:db8::7"),
            ("10.0.0.1", &["[2001:db8::7]"], "2001:db8::7"),
            ("10.0.0.1", &["198.51.100.1, unknown"], "10.0.0.1"),
            ("10.0.0.1", &["198.51.100.1, , 10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", &[], "10.0.0.1"),
        ];
        for (peer, lines, expected) in table {
            assert_eq!(
                client_address(ip(peer), &headers(lines), &proxies),
                ip(expected),
                "{peer} {lines:?}"
            );
        }
        let long = vec!["10.0.0.9"; 1_000].join(",");
        assert_eq!(client_address(ip("10.0.0.1"), &headers(&[&long]), &proxies), ip("10.0.0.9"));
    }

    fn rates(change: impl FnOnce(&mut Config)) -> RequestRateLimits {
        let mut config = Config::new("127.0.0.1:0".parse().unwrap(), "folder".into());
        (config.rate.address_per_second, config.rate.address_burst) = (1, 3);
        (config.rate.wallet_per_second, config.rate.wallet_burst) = (1, 3);
        change(&mut config);
        RequestRateLimits::from_config(&config)
    }

    /// How many of a thousand requests are admitted, each with another forged header.
    fn taken(rates: &RequestRateLimits, peer: &str, header: impl Fn(u32) -> Vec<String>) -> usize {
        let ask = |n: &u32| {
            let lines = header(*n);
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            rates.count_request(ip(peer), &headers(&lines)).is_ok()
        };
        (0..1_000).filter(ask).count()
    }

    fn forged_address(n: u32) -> String {
        IpAddr::V4((0x0b00_0000 + n).into()).to_string()
    }

    #[test]
    fn a_thousand_forged_addresses_count_as_one_sender() {
        // A second may pass meanwhile and admit one more request.
        let few = |n: usize| assert!((3..10).contains(&n), "{n} of 1,000 requests were admitted");
        few(taken(&rates(|_| {}), "203.0.113.5", |n| vec![forged_address(n)]));
        let proxied = rates(|c| c.trusted_proxies = vec!["10.0.0.0/8".parse().unwrap()]);
        few(taken(&proxied, "10.0.0.1", |n| vec![format!("{}, 198.51.100.1", forged_address(n))]));
        few(taken(&proxied, "10.0.0.1", |n| vec![forged_address(n), "198.51.100.2".to_owned()]));
        few(taken(&proxied, "2001:db8::1", |n| vec![forged_address(n)]));
        let all = taken(&proxied, "10.0.0.1", |n| vec![forged_address(n)]);
        assert_eq!(all, 1_000, "different senders behind a proxy must not share a rate limit");
    }

    #[test]
    fn loopback_is_exempt_unless_it_forwards_requests() {
        let rates = rates(|_| {});
        assert_eq!(taken(&rates, "127.0.0.1", |_| Vec::new()), 1_000);
        assert_eq!(taken(&rates, "::1", |_| Vec::new()), 1_000);
        assert!(taken(&rates, "127.0.0.1", |n| vec![forged_address(n)]) < 10);
        assert!(taken(&rates, "203.0.113.7", |_| vec!["127.0.0.1".to_owned()]) < 10);
    }

    #[test]
    fn an_ipv6_network_shares_one_rate_and_a_wallet_has_one_rate_from_any_address() {
        let rates = rates(|_| {});
        let from = |n: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, n]);
        let taken = (0..1_000).filter(|n| rates.count_request(from(*n), &HeaderMap::new()).is_ok());
        assert!(taken.count() < 10);
        let wallet = Address([1; 20]);
        assert!((0..1_000).filter(|_| rates.count_message(wallet).is_ok()).count() < 10);
        rates.count_message(Address([2; 20])).unwrap();
    }
}
