//! The cost of an estimate: processor time of its thread, so that other load on the machine does
//! not distort it.

/// Processor time of this thread, in seconds.
#[cfg(unix)]
pub(super) fn seconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

/// Seconds since the first call, if the system does not report processor time.
#[cfg(not(unix))]
pub(super) fn seconds() -> f64 {
    static BEGUN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    BEGUN.get_or_init(std::time::Instant::now).elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    #[test]
    fn computation_increases_the_clock() {
        let before = super::seconds();
        let sum = (0..2_000_000_u64).fold(0.0_f64, |sum, at| sum + (at as f64).sqrt());
        assert!(sum > 0.0 && super::seconds() > before);
    }
}
