//! The demonstration's child processes: instances of this program, monitored and always stopped.
//!
//! Each child has a pipe as standard input and exits when it closes, so that no child survives a
//! killed demonstration. On every other exit the guard kills and reaps the remaining children.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::failure::Failure;

/// Poll interval of a wait.
const POLL: Duration = Duration::from_millis(20);
/// Maximum number of bytes of a log in an error message.
const LOG_TAIL_BYTES: usize = 2_000;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Makes Ctrl-C and SIGTERM end the demonstration with a cleanup.
pub(super) fn catch_interrupts() -> anyhow::Result<()> {
    ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::SeqCst))
        .context("cannot listen for Ctrl-C")
}

/// Fails after an interrupt.
pub(super) fn check_interrupted() -> anyhow::Result<()> {
    if INTERRUPTED.load(Ordering::SeqCst) {
        return Err(
            Failure::interrupted("interrupted before the end: no report was written").into()
        );
    }
    Ok(())
}

struct ChildProcess {
    name: String,
    log: PathBuf,
    child: Child,
}

/// All child processes of a demonstration.
pub(crate) struct Children {
    program: PathBuf,
    logs: PathBuf,
    running: Vec<ChildProcess>,
}

impl Children {
    /// No children yet; their output goes to files in `logs`.
    pub(super) fn new(logs: PathBuf) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&logs).with_context(|| logs.display().to_string())?;
        let program = std::env::current_exe().context("cannot find this program's executable")?;
        Ok(Self { program, logs, running: Vec::new() })
    }

    fn command(&self, arguments: &[String]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .arg("--exit-with-parent")
            .env("OMP_NUM_THREADS", "1")
            .env("NO_COLOR", "1")
            .stdin(Stdio::piped());
        command
    }

    /// Starts a process in the background.
    pub(crate) fn start(&mut self, name: &str, arguments: &[String]) -> anyhow::Result<()> {
        let log = self.logs.join(format!("{name}.log"));
        let out = open_log(&log)?;
        let err = out.try_clone().with_context(|| log.display().to_string())?;
        let child = self
            .command(arguments)
            .stdout(out)
            .stderr(err)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        self.running.push(ChildProcess { name: name.to_owned(), log, child });
        Ok(())
    }

    /// Runs a process until it exits, and returns its exit status and standard output.
    pub(super) fn call(
        &mut self,
        name: &str,
        arguments: &[String],
        patience: Duration,
    ) -> anyhow::Result<(ExitStatus, String)> {
        let out = self.logs.join(format!("{name}.out"));
        let log = self.logs.join(format!("{name}.log"));
        let child = self
            .command(arguments)
            .stdout(open_log(&out)?)
            .stderr(open_log(&log)?)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        self.running.push(ChildProcess { name: name.to_owned(), log, child });
        let status = self.wait_for(name, patience)?;
        Ok((status, std::fs::read_to_string(&out).with_context(|| out.display().to_string())?))
    }

    /// Waits until a child exits.
    pub(super) fn wait_for(
        &mut self,
        name: &str,
        patience: Duration,
    ) -> anyhow::Result<ExitStatus> {
        let begun = Instant::now();
        let at = self
            .running
            .iter()
            .position(|running| running.name == name)
            .with_context(|| format!("{name} was never started"))?;
        loop {
            check_interrupted()?;
            let running = &mut self.running[at];
            if let Some(status) = running.child.try_wait()? {
                self.running.remove(at);
                return Ok(status);
            }
            if begun.elapsed() > patience {
                let tail = tail(&running.log);
                let message = format!(
                    "{name} did not exit within {} s; its log ends with:\n{tail}",
                    patience.as_secs()
                );
                return Err(Failure::fault("TIMEOUT", message).into());
            }
            std::thread::sleep(POLL);
        }
    }

    /// Fails if a child has exited with an error.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        check_interrupted()?;
        for running in &mut self.running {
            if let Some(status) = running.child.try_wait()?
                && !status.success()
            {
                return Err(child_failed(&running.name, status, &running.log).into());
            }
        }
        Ok(())
    }

    /// Waits until `file` has been written by the child `name`.
    pub(crate) fn wait_for_file(
        &mut self,
        name: &str,
        file: &Path,
        patience: Duration,
    ) -> anyhow::Result<String> {
        self.wait_until(name, patience, || {
            let text = std::fs::read_to_string(file).ok().filter(|text| text.ends_with('\n'))?;
            Some(text.trim().to_owned())
        })
    }

    /// Waits until the log of the child `name` has a line with `part`.
    pub(super) fn wait_for_line(
        &mut self,
        name: &str,
        part: &str,
        patience: Duration,
    ) -> anyhow::Result<()> {
        let log = self.logs.join(format!("{name}.log"));
        self.wait_until(name, patience, || {
            let log_text = std::fs::read_to_string(&log).ok()?;
            log_text.lines().any(|line| line.contains(part)).then_some(())
        })
    }

    /// Polls until `look` returns a value for the child `name`.
    fn wait_until<T>(
        &mut self,
        name: &str,
        patience: Duration,
        look: impl Fn() -> Option<T>,
    ) -> anyhow::Result<T> {
        let begun = Instant::now();
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            self.check()?;
            if begun.elapsed() > patience {
                let message =
                    format!("{name} did not start; its log ends with:\n{}", self.log_tail(name));
                return Err(Failure::fault("TIMEOUT", message).into());
            }
            std::thread::sleep(POLL);
        }
    }

    /// The end of a child's log, for an error message.
    pub(super) fn log_tail(&self, name: &str) -> String {
        tail(&self.logs.join(format!("{name}.log")))
    }

    /// Asks all children to stop, waits up to `patience`, and kills the remaining ones.
    pub(super) fn stop(&mut self, patience: Duration) {
        for running in &mut self.running {
            drop(running.child.stdin.take());
        }
        let begun = Instant::now();
        while begun.elapsed() < patience
            && self.running.iter_mut().any(|r| matches!(r.child.try_wait(), Ok(None)))
        {
            std::thread::sleep(POLL);
        }
        for running in &mut self.running {
            let _ = running.child.kill(); // an error means that it has already exited
            let _ = running.child.wait();
        }
        self.running.clear();
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.stop(Duration::from_millis(500));
    }
}

fn open_log(path: &Path) -> anyhow::Result<File> {
    OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .open(path)
        .with_context(|| path.display().to_string())
}

fn child_failed(name: &str, status: ExitStatus, log: &Path) -> Failure {
    Failure::fault(
        "CHILD_FAILED",
        format!("{name} exited ({status}); its log ends with:\n{}", tail(log)),
    )
}

fn tail(log: &Path) -> String {
    let mut text = String::new();
    let read = File::open(log).and_then(|mut file| file.read_to_string(&mut text));
    if read.is_err() || text.trim().is_empty() {
        return "(empty)".to_owned();
    }
    let mut from = text.len().saturating_sub(LOG_TAIL_BYTES);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..].trim_end().to_owned()
}
