//! Ends a process together with its parent process.

use std::io::Read;

/// Ends this process as soon as its standard input closes. The system closes it when the parent
/// process ends, for any reason. Data that is not on disk by then is lost, as in a crash, and every
/// command recovers from a crash.
pub(crate) fn exit_with_parent() {
    std::thread::spawn(|| {
        let mut ignored = [0u8; 64];
        while matches!(std::io::stdin().read(&mut ignored), Ok(read) if read > 0) {}
        #[expect(
            clippy::disallowed_methods,
            reason = "the process must end as abruptly as in a crash"
        )]
        std::process::exit(0);
    });
}
