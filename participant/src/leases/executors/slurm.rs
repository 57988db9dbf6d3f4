//! Executors as jobs of Slurm, through its own commands.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::backend::{
    ExecutorBackend, ExecutorCommand, ExecutorError, ExecutorStart, ExecutorState, INHERITED,
    executor_log, executor_log_end,
};

/// Time between two readings of the queue.
const QUEUE_EVERY: Duration = Duration::from_millis(1_000);
/// A job that was submitted a moment ago may not be listed yet.
const LISTED_AFTER: Duration = Duration::from_millis(5_000);
/// Longest run of a command of Slurm, in seconds.
const COMMAND_LIMIT_S: &str = "10";
/// Longest error of a command that is shown, in characters.
const ERROR_CHARS_MAX: usize = 400;
/// Most further arguments of `sbatch`.
pub const SBATCH_ARGUMENTS_MAX: usize = 64;

/// The jobs of the account in Slurm's queue.
#[derive(Debug)]
struct JobQueue {
    read_at: Instant,
    /// State and reason by the number of the job; or why the queue cannot be read.
    jobs: Result<BTreeMap<String, (String, String)>, String>,
}

/// Executors as jobs of Slurm. `sbatch`, `squeue` and `scancel` must be on the path, and the folders of executors on
/// a file system that the nodes share.
#[derive(Debug)]
pub struct SlurmBackend {
    command: ExecutorCommand,
    /// Further arguments of `sbatch`, such as `--partition=gpu`.
    arguments: Vec<String>,
    queue: Option<JobQueue>,
    submitted: BTreeMap<String, Instant>,
}

impl SlurmBackend {
    /// A backend with further arguments of `sbatch`, such as a partition.
    #[must_use]
    pub const fn new(command: ExecutorCommand, arguments: Vec<String>) -> Self {
        Self { command, arguments, queue: None, submitted: BTreeMap::new() }
    }

    /// The script of a job.
    fn script(&self, start: &ExecutorStart<'_>) -> String {
        let words: Vec<String> =
            self.command.of(start.folder).iter().map(|word| quoted(word)).collect();
        let words = words.join(" ");
        let tasks = start.devices.len();
        let launch = if tasks > 1 { format!("srun --ntasks={tasks} ") } else { String::new() };
        format!("#!/bin/sh\nexec {launch}{words}\n")
    }

    /// The state of a job in the queue, which is read again once it is old.
    fn queued(&mut self, job: &str) -> Result<Option<(String, String)>, ExecutorError> {
        let is_old = |queue: &JobQueue| queue.read_at.elapsed() >= QUEUE_EVERY;
        if self.queue.as_ref().is_none_or(is_old) {
            let arguments = ["--me", "--noheader", "--format=%i|%T|%r"];
            let text = run("squeue", &arguments).map_err(|error| error.to_string());
            let jobs = text.map(|text| parse_queue(&text));
            self.queue = Some(JobQueue { read_at: Instant::now(), jobs });
        }
        match self.queue.as_ref().map(|queue| &queue.jobs) {
            Some(Ok(jobs)) => Ok(jobs.get(job).cloned()),
            Some(Err(why)) => {
                Err(ExecutorError::Program { program: "squeue".to_owned(), why: why.clone() })
            }
            None => Ok(None),
        }
    }
}

/// A word for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The jobs in the lines of `squeue`.
fn parse_queue(text: &str) -> BTreeMap<String, (String, String)> {
    let parse = |line: &str| {
        let mut parts = line.trim().splitn(3, '|');
        let (job, state) = (parts.next()?, parts.next()?);
        let reason = parts.next().unwrap_or_default();
        Some((job.to_owned(), (state.to_owned(), reason.to_owned())))
    };
    text.lines().filter_map(parse).collect()
}

/// Why an argument of `sbatch` is not possible: it would move, multiply or hold the job.
#[must_use]
pub fn refuse_argument(argument: &str) -> bool {
    const LONG: [&str; 8] = [
        "--clusters",
        "--array",
        "--wait",
        "--wrap",
        "--nodes",
        "--hold",
        "--export",
        "--parsable",
    ];
    const SHORT: [&str; 5] = ["-M", "-a", "-W", "-N", "-H"];
    let name = argument.split('=').next().unwrap_or_default();
    // Slurm accepts the beginning of a long name.
    let is_long = name.len() > 2 && LONG.iter().any(|long| long.starts_with(name));
    is_long || SHORT.iter().any(|short| name.starts_with(short))
}

/// The number of a job in the output of `sbatch --parsable`. A job of another cluster, `JOB;CLUSTER`, has none.
fn parse_job(text: &str) -> Option<String> {
    let job = text.trim().lines().last()?.trim();
    let is_number = !job.is_empty() && job.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| job.to_owned())
}

/// The output of a command of Slurm.
fn run(program: &str, arguments: &[&str]) -> Result<String, ExecutorError> {
    let failed = |why: String| ExecutorError::Program { program: program.to_owned(), why };
    // A controller that hangs must not stop the daemon: `timeout` of GNU ends its client.
    let mut command = Command::new("timeout");
    command.args(["--kill-after=1", COMMAND_LIMIT_S, program]).args(arguments);
    let output = command.stdin(Stdio::null()).output();
    let Output { status, stdout, stderr } =
        output.map_err(|error| failed(format!("timeout of GNU coreutils: {error}")))?;
    match status.success() {
        true => Ok(String::from_utf8_lossy(&stdout).into_owned()),
        false => {
            let why: String =
                String::from_utf8_lossy(&stderr).trim().chars().take(ERROR_CHARS_MAX).collect();
            Err(failed(match status.code() {
                Some(124 | 137) => format!("no answer within {COMMAND_LIMIT_S} s"),
                Some(127) => {
                    format!("{why}: install Slurm's commands, or set PATH to their folder")
                }
                _ if why.is_empty() => status.to_string(),
                _ => why,
            }))
        }
    }
}

impl ExecutorBackend for SlurmBackend {
    fn name(&self) -> &'static str {
        "slurm"
    }

    fn check(&mut self) -> Result<(), ExecutorError> {
        if self.queue.is_none() {
            run("sbatch", &["--version"])?;
        }
        self.queued("").map(drop)
    }

    fn start(&mut self, start: &ExecutorStart<'_>) -> Result<String, ExecutorError> {
        let script = start.folder.join("job.sh");
        crate::atomic_file::write_atomically(&script, self.script(start).as_bytes())?;
        // A percent sign begins a pattern of Slurm's.
        let log = executor_log(start.folder).display().to_string().replace('%', "%%");
        let fixed = [
            "--parsable".to_owned(),
            format!("--job-name={}", start.name),
            format!("--output={log}"),
            format!("--error={log}"),
            // Ranks on several nodes could have several classes of bits.
            "--nodes=1".to_owned(),
            format!("--ntasks={}", start.devices.len().max(1)),
            format!("--export={}", INHERITED.join(",")),
            "--no-requeue".to_owned(),
        ];
        let script = script.display().to_string();
        let words = fixed.iter().chain(&self.arguments).chain([&script]);
        let words: Vec<&str> = words.map(String::as_str).collect();
        let text = run("sbatch", &words)?;
        let job = parse_job(&text).ok_or_else(|| ExecutorError::Program {
            program: "sbatch".to_owned(),
            why: format!("it returned no number of a job: {:?}", text.trim()),
        })?;
        self.submitted.insert(job.clone(), Instant::now());
        self.queue = None;
        Ok(job)
    }

    fn state(&mut self, handle: &str, folder: &Path) -> Result<ExecutorState, ExecutorError> {
        let is_new = self.submitted.get(handle).is_some_and(|since| since.elapsed() < LISTED_AFTER);
        match self.queued(handle)? {
            Some((state, reason)) if state == "PENDING" => Ok(ExecutorState::Waiting(reason)),
            Some((state, _)) if !is_final(&state) => Ok(ExecutorState::Running),
            None if is_new && !folder.join("result.json").exists() => {
                Ok(ExecutorState::Waiting("submitted".to_owned()))
            }
            found => {
                self.submitted.remove(handle);
                let log = executor_log_end(folder);
                let state = found.map(|(state, _)| state).filter(|_| log.is_empty());
                Ok(ExecutorState::Ended(state.unwrap_or(log)))
            }
        }
    }

    fn cancel(&mut self, handle: &str) -> Result<(), ExecutorError> {
        self.submitted.remove(handle);
        self.queue = None;
        run("scancel", &["--quiet", handle]).map(drop)
    }

    fn cancel_by_name(&mut self, name: &str) -> Result<(), ExecutorError> {
        run("scancel", &["--quiet", "--me", &format!("--name={name}")]).map(drop)
    }

    fn outlives_daemon(&self) -> bool {
        true
    }
}

/// Whether a job in this state has ended.
fn is_final(state: &str) -> bool {
    !matches!(
        state,
        "RUNNING"
            | "COMPLETING"
            | "CONFIGURING"
            | "SUSPENDED"
            | "RESIZING"
            | "STAGE_OUT"
            | "STOPPED"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend() -> SlurmBackend {
        let command = vec!["/opt/florin's/florin".to_owned(), "execute-segments".to_owned()];
        let options = vec!["--engine".to_owned(), "torch".to_owned()];
        SlurmBackend::new(ExecutorCommand { command, options }, Vec::new())
    }

    #[test]
    fn the_script_starts_a_task_for_each_device() {
        let start = ExecutorStart { name: "a", folder: Path::new("/shared/a b"), devices: &[0] };
        let own =
            "'/opt/florin'\\''s/florin' 'execute-segments' '/shared/a b' '--engine' 'torch'\n";
        assert_eq!(backend().script(&start), format!("#!/bin/sh\nexec {own}"));
        let start = ExecutorStart { devices: &[0, 1], ..start };
        assert_eq!(backend().script(&start), format!("#!/bin/sh\nexec srun --ntasks=2 {own}"));
    }

    #[test]
    fn arguments_that_move_or_multiply_a_job_are_refused() {
        for refused in [
            "-M",
            "-Mother",
            "--clusters=a",
            "--array=1-9",
            "-a1-9",
            "--wait",
            "-N2",
            "--nodes=2",
            "--arr=1-9",
            "--hold",
            "--export=ALL",
        ] {
            assert!(refuse_argument(refused), "{refused}");
        }
        for accepted in
            ["--partition=gpu", "-p", "--account=ann", "--gpus-per-task=1", "--nodelist=a"]
        {
            assert!(!refuse_argument(accepted), "{accepted}");
        }
    }

    #[test]
    fn the_output_of_the_commands_is_read() {
        assert_eq!(parse_job("12\n"), Some("12".to_owned()));
        assert_eq!(parse_job("sbatch: a line\n12\n"), Some("12".to_owned()));
        for wrong in ["", "Submitted batch job 12", "-1", "12;cluster"] {
            assert_eq!(parse_job(wrong), None, "{wrong:?}");
        }
        let jobs = parse_queue("  7|PENDING|Resources\n8|RUNNING|None\n\nshort\n");
        assert_eq!(jobs.len(), 2);
        assert_eq!(jobs["7"], ("PENDING".to_owned(), "Resources".to_owned()));
        for (state, expected) in [
            ("RUNNING", false),
            ("COMPLETING", false),
            ("SUSPENDED", false),
            ("COMPLETED", true),
            ("TIMEOUT", true),
            ("NODE_FAIL", true),
            ("OUT_OF_MEMORY", true),
        ] {
            assert_eq!(is_final(state), expected, "{state}");
        }
    }
}
