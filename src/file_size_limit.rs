//! The limit on the size of files that a process writes (`ulimit -f`).

/// Makes writes beyond the limit fail like writes to a full disk; by default SIGXFSZ ends the process.
///
/// # Errors
/// The signal cannot be received.
#[cfg(unix)]
pub(crate) fn fail_writes_beyond() -> std::io::Result<()> {
    use rustix::process::Signal;
    use tokio::signal::unix::{SignalKind, signal};
    // A handler stays installed after its runtime has ended, and the write then fails with an error.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _context = runtime.enter();
    drop(signal(SignalKind::from_raw(Signal::XFSZ.as_raw()))?);
    Ok(())
}

/// Elsewhere no signal ends the process.
#[cfg(not(unix))]
pub(crate) fn fail_writes_beyond() -> std::io::Result<()> {
    Ok(())
}
