//! Notifications to systemd for a service of `Type=notify`: ready, watchdog, stopping. Without
//! systemd nothing is sent.
//!
//! The protocol is one datagram of lines to the socket that `NOTIFY_SOCKET` names. The crate
//! sd-notify (0.5) would block on a full socket, and it does not support names in the abstract
//! namespace.

use std::time::Duration;

use florin_coordinator::Host;

/// The notification socket of systemd, if there is one.
#[derive(Debug, Default)]
pub(super) struct Systemd {
    #[cfg(unix)]
    socket: Option<(std::os::unix::net::UnixDatagram, std::os::unix::net::SocketAddr)>,
    watchdog_interval: Option<Duration>,
}

impl Systemd {
    /// Reads the environment. A socket that cannot be used causes only a warning: the market is
    /// more important.
    pub(super) fn from_env() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        let Some(address) = variable("NOTIFY_SOCKET") else {
            return Self::default();
        };
        let mine = variable("WATCHDOG_PID").is_none_or(|id| id == std::process::id().to_string());
        let alive_every = variable("WATCHDOG_USEC").filter(|_| mine);
        let alive_every = alive_every.as_deref().and_then(half);
        Self::at(&address, alive_every)
    }

    #[cfg(unix)]
    fn at(address: &str, alive_every: Option<Duration>) -> Self {
        let bound = socket_address(address).and_then(|to| {
            let socket = std::os::unix::net::UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            Ok((socket, to))
        });
        match bound {
            Ok(socket) => Self { socket: Some(socket), watchdog_interval: alive_every },
            Err(error) => {
                tracing::warn!(address, %error, "NOTIFY_SOCKET cannot be used: systemd receives no \
                    notifications");
                Self::default()
            }
        }
    }

    #[cfg(not(unix))]
    fn at(_: &str, _: Option<Duration>) -> Self {
        Self::default()
    }

    /// Sends that the coordinator answers requests.
    pub(super) fn ready(&self, at: std::net::SocketAddr) {
        self.notify(&format!("READY=1\nSTATUS=listening on {at}"));
    }

    /// Sends that the coordinator is shutting down.
    pub(super) fn stopping(&self) {
        self.notify("STOPPING=1\nSTATUS=completing in-flight requests");
    }

    /// Sends a watchdog notification at every interval, as long as the engine answers. Never
    /// returns.
    pub(super) async fn run_watchdog(&self, host: &Host) {
        let Some(every) = self.watchdog_interval else {
            return std::future::pending().await;
        };
        loop {
            if let Ok(Ok(())) = tokio::time::timeout(every, host.read(|_, _| ())).await {
                self.notify("WATCHDOG=1");
            }
            tokio::time::sleep(every).await;
        }
    }

    #[cfg(unix)]
    fn notify(&self, lines: &str) {
        if let Some((socket, to)) = &self.socket
            && let Err(error) = socket.send_to_addr(lines.as_bytes(), to)
        {
            tracing::warn!(%error, "cannot notify systemd: {}", lines.lines().next().unwrap_or(""));
        }
    }

    #[cfg(not(unix))]
    fn notify(&self, _: &str) {}
}

/// Half the watchdog timeout, given in microseconds: systemd expects a notification within each
/// timeout.
fn half(microseconds: &str) -> Option<Duration> {
    let time = Duration::from_micros(microseconds.parse().ok()?) / 2;
    (!time.is_zero()).then_some(time)
}

/// A path, or a name in the abstract namespace, which starts with `@`.
#[cfg(unix)]
fn socket_address(text: &str) -> std::io::Result<std::os::unix::net::SocketAddr> {
    use std::os::unix::net::SocketAddr;
    #[cfg(target_os = "linux")]
    if let Some(name) = text.strip_prefix('@') {
        use std::os::linux::net::SocketAddrExt;
        return SocketAddr::from_abstract_name(name);
    }
    if text.starts_with('/') {
        return SocketAddr::from_pathname(text);
    }
    Err(std::io::Error::other("expected a path that begins with / or a name that begins with @"))
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    fn receive(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 256];
        let n = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..n]).into_owned()
    }

    #[test]
    fn ready_and_stopping_are_sent_to_a_socket_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let systemd = Systemd::at(path.to_str().unwrap(), None);
        systemd.ready("127.0.0.1:7700".parse().unwrap());
        assert_eq!(receive(&socket), "READY=1\nSTATUS=listening on 127.0.0.1:7700");
        systemd.stopping();
        assert!(receive(&socket).starts_with("STOPPING=1\n"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_at_sign_names_an_abstract_socket() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::SocketAddr;
        let name = format!("florin-test-{}", std::process::id());
        let socket =
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        Systemd::at(&format!("@{name}"), None).stopping();
        assert!(receive(&socket).starts_with("STOPPING=1\n"));
    }

    #[test]
    fn a_missing_notify_socket_is_ignored() {
        Systemd::at("relative", None).stopping();
        Systemd::at("/nowhere/at/all", None).stopping();
        Systemd::default().stopping();
        assert_eq!(half("3000000"), Some(Duration::from_millis(1_500)));
        assert_eq!((half("0"), half("x")), (None, None));
    }
}
