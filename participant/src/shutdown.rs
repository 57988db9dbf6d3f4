//! A request to stop, and waiting that it cuts short.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Asks a running participant or provider to stop at the next safe point; every point is one, since
/// all of them may be killed at any moment anyway. Clones ask the same.
#[derive(Clone, Debug, Default)]
pub struct Shutdown(Arc<(Mutex<bool>, Condvar)>);

impl Shutdown {
    /// Nobody has asked yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks, for good.
    pub fn request(&self) {
        let (asked, wake) = &*self.0;
        *asked.lock().unwrap_or_else(PoisonError::into_inner) = true;
        wake.notify_all();
    }

    /// Whether somebody has asked.
    #[must_use]
    pub fn requested(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits so long, or until somebody asks.
    pub fn wait(&self, time: Duration) {
        let (asked, wake) = &*self.0;
        let asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
        // The answer does not matter: callers ask `requested`.
        let _ = wake.wait_timeout_while(asked, time, |asked| !*asked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_ends_a_wait() {
        let shutdown = Shutdown::new();
        let other = shutdown.clone();
        let waiting = std::thread::spawn(move || other.wait(Duration::from_secs(3_600)));
        shutdown.request();
        waiting.join().unwrap();
        assert!(shutdown.requested());
    }
}
