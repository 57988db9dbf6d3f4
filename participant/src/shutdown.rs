//! A shutdown request, and waits that it interrupts.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Requests a graceful shutdown of a running participant or provider at the next step. Any step is
/// a safe point, because recovery must work after a kill at any point. Clones share the request.
#[derive(Clone, Debug, Default)]
pub struct Shutdown(Arc<(Mutex<bool>, Condvar)>);

impl Shutdown {
    /// No shutdown is requested yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests shutdown; this cannot be undone.
    pub fn request(&self) {
        let (asked, wake) = &*self.0;
        *asked.lock().unwrap_or_else(PoisonError::into_inner) = true;
        wake.notify_all();
    }

    /// Whether shutdown is requested.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the given time, or until shutdown is requested.
    pub fn wait(&self, time: Duration) {
        let (asked, wake) = &*self.0;
        let asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
        // The result does not matter: callers check `requested`.
        let _ = wake.wait_timeout_while(asked, time, |asked| !*asked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shutdown_request_ends_a_wait() {
        let shutdown = Shutdown::new();
        let other = shutdown.clone();
        let waiting = std::thread::spawn(move || other.wait(Duration::from_secs(3_600)));
        shutdown.request();
        waiting.join().unwrap();
        assert!(shutdown.is_requested());
    }
}
