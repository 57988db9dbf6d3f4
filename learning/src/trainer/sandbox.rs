//! Runs a trainer in a sandbox of bubblewrap: no network, no home, no keys, no environment; only
//! the system's programs, the code and the files of one run.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::code::{PROGRAM, code_error};
use super::job::Verb;
use super::{Isolation, TrainerError, TrainerHost};

/// Folders and files of the system that a program needs; the ones that exist are shown read-only.
const SYSTEM: [&str; 8] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives"];
/// Where the sandbox shows the code and the files of a training.
const CODE: &str = "/code";
const JOB: &str = "/job";
/// Mounts of the sandbox's own that are made read-only once it is complete.
const READ_ONLY: [&str; 3] = ["/proc", "/dev", "/"];
/// Size of the sandbox's `/tmp` and of `/dev/shm`, in bytes.
const TEMPORARY_BYTES: u64 = 1 << 30;
/// Largest file that a program may write, in bytes, unless its output is larger.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Unit of the limit on file sizes, in bytes.
const BLOCK_BYTES: u64 = 512;
/// Largest number of processes and threads of a sandbox.
const PROCESSES_MAX: u32 = 1_024;
/// Part of a program's messages that an error shows, in bytes.
const LOG_BYTES: u64 = 2_048;
/// Interval of the checks whether a program has ended.
const POLL: Duration = Duration::from_millis(20);
/// The start of bubblewrap's own messages.
const BWRAP_MESSAGE: &str = "bwrap: ";
/// An account without rights.
const NOBODY: &str = "65534";

/// How programs are run.
#[derive(Debug)]
pub(super) struct Sandbox {
    /// `bwrap`; `None` without a sandbox.
    bwrap: Option<PathBuf>,
    code: PathBuf,
    binds: Vec<PathBuf>,
}

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// With status 0.
    Done,
    /// With another status.
    Failed {
        /// The status, as text.
        status: String,
        /// The end of the program's messages.
        log: String,
    },
    /// Bubblewrap could not create the sandbox.
    NoSandbox {
        /// Its message.
        log: String,
    },
    /// It was stopped at its time limit.
    TimedOut,
    /// It was stopped on request.
    Stopped,
}

impl Sandbox {
    /// Checks the paths, and that a sandbox can be created.
    pub(super) fn new(host: &TrainerHost, code: &Path) -> Result<Self, TrainerError> {
        let code = real_path(code)?;
        let binds: Vec<PathBuf> =
            host.binds.iter().map(|path| real_path(path)).collect::<Result<_, _>>()?;
        if host.isolation == Isolation::Unsandboxed {
            return Ok(Self { bwrap: None, code, binds });
        }
        check_secrets(&host.secrets, &binds)?;
        let missing = |why: String| TrainerError::SandboxMissing { why };
        let bwrap = find_bwrap(std::env::var_os("PATH").as_deref())
            .ok_or_else(|| missing("bwrap is not installed".to_owned()))?;
        let sandbox = Self { bwrap: Some(bwrap.clone()), code, binds };
        let mut probe = Command::new(bwrap);
        probe.args(sandbox.arguments(&[])).args(["/bin/sh", "-c", "exit 0"]).env_clear();
        let tried = probe.stdin(Stdio::null()).output();
        match tried.map_err(|error| missing(error.to_string()))? {
            output if output.status.success() => Ok(sandbox),
            output => Err(missing(plain_text(&output.stderr))),
        }
    }

    /// Runs a verb of the program in `folder`, whose output file it may write. Asks `go_on` all the
    /// time, and ends it after `limit`, with all its processes.
    pub(super) fn run(
        &self,
        folder: &Path,
        verb: Verb<'_>,
        output_bytes: u64,
        limit: Duration,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> io::Result<Outcome> {
        let mut log = tempfile::tempfile_in(folder.parent().unwrap_or(folder))?;
        let mut command = self.command(folder, verb, output_bytes);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
        let mut running = Running(command.spawn()?);
        let start = Instant::now();
        loop {
            if let Some(status) = running.0.try_wait()? {
                drop(running);
                if status.success() {
                    return Ok(Outcome::Done);
                }
                let log = tail(&mut log)?;
                let is_of_sandbox = self.bwrap.is_some() && log.starts_with(BWRAP_MESSAGE);
                return Ok(match is_of_sandbox && status.code() == Some(1) {
                    true => Outcome::NoSandbox { log },
                    false => Outcome::Failed { status: status.to_string(), log },
                });
            }
            if start.elapsed() >= limit {
                return Ok(Outcome::TimedOut);
            }
            if go_on().is_break() {
                return Ok(Outcome::Stopped);
            }
            std::thread::sleep(POLL);
        }
    }

    /// The command, in a process group of its own, with limits set by a shell.
    fn command(&self, folder: &Path, verb: Verb<'_>, output_bytes: u64) -> Command {
        let blocks = FILE_BYTES_MAX.max(output_bytes).div_ceil(BLOCK_BYTES);
        let mut limits = format!("ulimit -c 0 && ulimit -f {blocks} || exit 125\n");
        let (code, job) = match self.bwrap {
            // The kernel counts the processes of a sandbox alone, and all of an account elsewhere.
            Some(_) => {
                limits += &format!(
                    "{{ ulimit -u {PROCESSES_MAX} || ulimit -p {PROCESSES_MAX}; }} 2>/dev/null || exit 125\n"
                );
                (Path::new(CODE), Path::new(JOB))
            }
            None => (self.code.as_path(), folder),
        };
        limits += "exec \"$@\"";
        let mut command = match &self.bwrap {
            Some(bwrap) => {
                let mut command = Command::new(bwrap);
                let files = self.arguments(&[(folder, verb.output())]);
                command.env_clear().args(files).arg("/bin/sh");
                command
            }
            None => {
                let mut command = Command::new("/bin/sh");
                let path = std::env::var_os("PATH").unwrap_or_default();
                command.env_clear().env("PATH", path).current_dir(folder);
                command
            }
        };
        command.args(["-c", limits.as_str(), "trainer"]);
        command.arg(code.join(PROGRAM)).arg(verb.name()).arg(job).process_group(0);
        command
    }

    /// The arguments of bubblewrap, up to the program; `job` is the folder of a run and its output.
    fn arguments(&self, job: &[(&Path, &str)]) -> Vec<OsString> {
        let mut all: Vec<OsString> = Vec::new();
        let mut add = |words: &[&str]| all.extend(words.iter().map(OsString::from));
        add(&["--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"]);
        add(&["--uid", NOBODY, "--gid", NOBODY, "--hostname", "trainer"]);
        add(&["--die-with-parent", "--new-session", "--clearenv"]);
        add(&["--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin", "--setenv", "HOME", "/tmp"]);
        add(&["--setenv", "LANG", "C.UTF-8"]);
        for path in SYSTEM {
            add(&["--ro-bind-try", path, path]);
        }
        let bytes = TEMPORARY_BYTES.to_string();
        add(&["--proc", "/proc", "--dev", "/dev", "--size", &bytes, "--tmpfs", "/dev/shm"]);
        add(&["--size", &bytes, "--tmpfs", "/tmp"]);
        let mut bind = |kind: &str, from: &Path, to: &Path| {
            all.extend([kind.into(), from.as_os_str().to_owned(), to.as_os_str().to_owned()]);
        };
        for path in &self.binds {
            bind(if is_device(path) { "--dev-bind" } else { "--ro-bind" }, path, path);
        }
        bind("--ro-bind", &self.code, Path::new(CODE));
        for (folder, output) in job {
            bind("--ro-bind", folder, Path::new(JOB));
            bind("--bind", &folder.join(output), &Path::new(JOB).join(output));
        }
        // Root outside owns the files of /proc/sys, and keeps that right inside without capabilities.
        all.extend(READ_ONLY.iter().flat_map(|path| ["--remount-ro", path]).map(OsString::from));
        all.extend(["--chdir", "/tmp", "--"].map(OsString::from));
        all
    }
}

/// A child that ends with its process group.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended. The first process of a sandbox ends all others of it.
        if let Some(group) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// Refuses a folder of code that contains a secret, or is in one.
pub(super) fn check_folder(secrets: &[PathBuf], folder: &Path) -> Result<(), TrainerError> {
    hide(secrets, &[real_path(folder)?])
}

/// Refuses binds that contain a secret, and secrets in the system's folders.
fn check_secrets(secrets: &[PathBuf], binds: &[PathBuf]) -> Result<(), TrainerError> {
    hide(secrets, &SYSTEM.map(PathBuf::from))?;
    hide(secrets, binds)
}

/// Refuses to show a path that contains a secret, or is in one.
fn hide(secrets: &[PathBuf], shown: &[PathBuf]) -> Result<(), TrainerError> {
    for secret in secrets {
        let Ok(real) = fs::canonicalize(secret) else { continue };
        if let Some(shown) =
            shown.iter().find(|shown| real.starts_with(shown) || shown.starts_with(&real))
        {
            let (secret, shown) = (secret.clone(), shown.clone());
            return Err(TrainerError::ShowsSecret { secret, shown });
        }
    }
    Ok(())
}

fn real_path(path: &Path) -> Result<PathBuf, TrainerError> {
    fs::canonicalize(path).map_err(|error| code_error(path, &error.to_string()))
}

fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_char_device())
}

/// `bwrap` in the folders of a search path.
pub(super) fn find_bwrap(path: Option<&OsStr>) -> Option<PathBuf> {
    std::env::split_paths(path?).map(|folder| folder.join("bwrap")).find(|file| file.is_file())
}

/// The end of a log, as text for a terminal.
fn tail(log: &mut File) -> io::Result<String> {
    let length = log.seek(SeekFrom::End(0))?;
    log.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES)))?;
    let mut bytes = Vec::new();
    log.take(LOG_BYTES).read_to_end(&mut bytes)?;
    Ok(plain_text(&bytes))
}

/// Text without control characters, on one line.
fn plain_text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> =
        text.split(|c: char| c.is_control()).filter(|part| !part.is_empty()).collect();
    match lines.is_empty() {
        true => "it printed nothing".to_owned(),
        false => lines.join(" | "),
    }
}
