//! A process that must not outlive the one that started it.

use std::io::Read;

/// Ends this process as soon as its standard input closes, which the system does when its parent is gone, however that
/// went. What is not on disk by then counts as never done: the same as a crash, which everything here survives.
pub(crate) fn exit_with_it() {
    std::thread::spawn(|| {
        let mut ignored = [0u8; 64];
        while matches!(std::io::stdin().read(&mut ignored), Ok(read) if read > 0) {}
        #[expect(clippy::disallowed_methods, reason = "the end is to be as sudden as a crash")]
        std::process::exit(0);
    });
}
