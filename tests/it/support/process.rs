//! The program under test, as processes.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Timeout of a test: many times the normal duration on two busy cores.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// Poll interval of a wait.
const POLL: Duration = Duration::from_millis(5);

/// The variables of torchrun for a rank.
pub(crate) fn rank(rank: usize, size: usize, port: u16) -> Vec<(String, String)> {
    let pairs = [
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", size.to_string()),
        ("MASTER_ADDR", "127.0.0.1".to_owned()),
        ("MASTER_PORT", port.to_string()),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A port of this machine on which nothing listens now.
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The result of a finished process.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl CommandOutput {
    /// The JSON on standard output.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// Asserts the exit code.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    /// The failure of a command with `--json`: the last line on standard error.
    pub(crate) fn json_error(&self) -> Option<serde_json::Value> {
        let line: serde_json::Value = serde_json::from_str(self.err.lines().last()?).ok()?;
        line.get("error").cloned()
    }

    /// Asserts the exit code and the error code.
    #[track_caller]
    pub(crate) fn refused(self, exit: i32, code: &str) -> Self {
        let in_text = self.err.contains(&format!("error[{code}]"));
        let in_json = || self.json_error().is_some_and(|error| error["code"] == code);
        assert!(in_text || in_json(), "no [{code}] in {self:?}");
        self.expect(exit)
    }
}

/// The program, without the `FLORIN_` variables of the test's environment.
pub(crate) fn command<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_florin"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FLORIN_") {
            command.env_remove(name);
        }
    }
    command.args(arguments).env("NO_COLOR", "1").env("OMP_NUM_THREADS", "1").stdin(Stdio::null());
    command
}

/// Runs the program until it exits.
pub(crate) fn florin<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> CommandOutput {
    let output = command(arguments).output().expect("the program must start");
    CommandOutput {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).expect("UTF-8"),
        err: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

/// A process in the background. It is killed on drop, however the test ends.
pub(crate) struct Process {
    name: String,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts a process; its output is appended to a log file with its name.
    pub(crate) fn start(folder: &Path, name: &str, arguments: &[String]) -> Self {
        Self::start_in(folder, name, arguments, &[])
    }

    /// As [`Process::start`], with environment variables.
    pub(crate) fn start_in(
        folder: &Path,
        name: &str,
        arguments: &[String],
        environment: &[(String, String)],
    ) -> Self {
        let log = folder.join(format!("{name}.log"));
        let child = spawn(arguments, environment, &log);
        let (arguments, environment) = (arguments.to_vec(), environment.to_vec());
        Self { name: name.to_owned(), arguments, environment, log, child }
    }

    /// Sends SIGTERM, as a service manager does.
    #[cfg(unix)]
    pub(crate) fn ask_to_stop(&self) {
        let term = rustix::process::Signal::TERM;
        rustix::process::kill_process(self.id(), term).expect("a signal");
    }

    /// The process id.
    #[cfg(unix)]
    pub(crate) fn id(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// Its output so far, across restarts.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Kills the process (SIGKILL).
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill(); // it may have exited already
        let _ = self.child.wait();
    }

    /// Restarts the process with the same arguments.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.child = spawn(&self.arguments, &self.environment, &self.log);
    }

    /// Whether the process is running.
    pub(crate) fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until the process exits.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("waiting for a child") {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "{} does not exit: {}", self.name, self.log());
            std::thread::sleep(POLL);
        }
    }

    /// Waits until the process exits, and asserts success.
    #[track_caller]
    pub(crate) fn finish(&mut self) {
        let status = self.wait();
        assert!(status.success(), "{} exited with {status}: {}", self.name, self.log());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(arguments: &[String], environment: &[(String, String)], log: &Path) -> Child {
    let open = || -> File {
        OpenOptions::new().create(true).append(true).open(log).expect("the log can be opened")
    };
    let environment = environment.iter().map(|(name, value)| (name, value));
    command(arguments)
        .envs(environment)
        .stdout(open())
        .stderr(open())
        .spawn()
        .expect("the program must start")
}

/// Polls until `look` returns a value.
#[track_caller]
pub(crate) fn until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    until_within(PATIENCE, what, look)
}

/// As [`until`], with another timeout.
#[track_caller]
pub(crate) fn until_within<T>(
    patience: Duration,
    what: &str,
    mut look: impl FnMut() -> Option<T>,
) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < patience, "timeout while waiting for: {what}");
        std::thread::sleep(POLL);
    }
}
