//! Injected faults and delays of a process's fsync calls.
//!
//! `strace`, attached to the process, injects them; if strace is missing or may not attach, a test
//! prints a note and does nothing.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::process::{Process, until};

/// A strace process that changes fsync. On drop it detaches from the coordinator.
pub(crate) struct FsyncInjection {
    strace: Child,
    calls: PathBuf,
}

impl FsyncInjection {
    /// Attaches to a process. `action` is in strace's syntax: `error=EIO:when=3` lets the third call
    /// of each thread fail. `None` if strace cannot attach.
    pub(crate) fn attach(folder: &Path, of: &Process, action: &str) -> Option<Self> {
        let (calls, log_file) = (folder.join("strace-calls"), folder.join("strace.log"));
        let _ = std::fs::remove_file(&calls);
        let inject = format!("inject=fsync,fdatasync:{action}");
        let id = of.id().as_raw_nonzero().to_string();
        let started = Command::new("strace")
            .args(["-f", "-e", "trace=fsync,fdatasync", "-e", &inject, "-p", &id, "-o"])
            .arg(&calls)
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(&log_file).unwrap())
            .spawn();
        let mut strace = match started {
            Ok(strace) => strace,
            Err(error) => {
                eprintln!("SKIPPED: strace is missing: {error}");
                return None;
            }
        };
        let attached = until("strace attaches", || {
            let text = std::fs::read_to_string(&log_file).unwrap_or_default();
            let ended = strace.try_wait().unwrap().is_some();
            if text.contains("attached") { Some(Ok(())) } else { ended.then_some(Err(text)) }
        });
        match attached {
            Ok(()) => Some(Self { strace, calls }),
            Err(message) => {
                eprintln!("SKIPPED: strace may not attach: {message}");
                None
            }
        }
    }

    /// Whether a call was changed so far.
    pub(crate) fn has_acted(&self) -> bool {
        std::fs::read_to_string(&self.calls).is_ok_and(|calls| calls.contains("(INJECTED)"))
    }
}

impl Drop for FsyncInjection {
    fn drop(&mut self) {
        // On SIGTERM, strace detaches before it exits.
        let _ = kill_process(Pid::from_child(&self.strace), Signal::TERM);
        let _ = self.strace.wait();
    }
}
