//! Executors as processes of this machine.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::backend::{
    ExecutorBackend, ExecutorCommand, ExecutorError, ExecutorStart, ExecutorState, INHERITED,
    executor_log, executor_log_end,
};
use crate::atomic_file::FileError;

/// The variable with the number of the process that an executor ends with.
pub const PARENT_VARIABLE: &str = "FLORIN_EXECUTOR_PARENT";
/// The variable with the numbers of an executor's devices.
const DEVICES_VARIABLE: &str = "FLORIN_DEVICES";
/// The variable by which CUDA shows a process some devices alone.
const CUDA_VARIABLE: &str = "CUDA_VISIBLE_DEVICES";
/// Most arguments of a launcher.
pub const LAUNCHER_ARGUMENTS_MAX: usize = 64;

/// Executors as processes of this machine, which end with this process.
#[derive(Debug)]
pub struct ProcessBackend {
    command: ExecutorCommand,
    launcher: Option<Vec<String>>,
    children: BTreeMap<String, Child>,
}

impl ProcessBackend {
    /// `launcher` starts as many processes as an executor has devices, from the second one on: `{count}` stands for
    /// their number, and `{devices}` for the numbers of the devices, with commas.
    #[must_use]
    pub const fn new(command: ExecutorCommand, launcher: Option<Vec<String>>) -> Self {
        Self { command, launcher, children: BTreeMap::new() }
    }

    fn arguments(&self, start: &ExecutorStart<'_>) -> Vec<String> {
        let own = self.command.of(start.folder);
        let launcher = self.launcher.as_ref().filter(|_| start.devices.len() > 1);
        let (count, devices) = (start.devices.len().to_string(), listed(start.devices));
        let replace =
            |word: &String| word.replace("{count}", &count).replace("{devices}", &devices);
        launcher.into_iter().flatten().map(replace).chain(own).collect()
    }
}

fn listed(devices: &[u32]) -> String {
    devices.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// The devices of CUDA: of those that the daemon sees, the ones with these numbers.
fn visible(own: Option<&str>, devices: &[u32]) -> String {
    let own: Vec<&str> = own.iter().flat_map(|own| own.split(',')).collect();
    let of = |device: &u32| {
        let at = usize::try_from(*device).unwrap_or(usize::MAX);
        own.get(at).map_or_else(|| device.to_string(), |own| (*own).to_owned())
    };
    devices.iter().map(of).collect::<Vec<_>>().join(",")
}

impl ExecutorBackend for ProcessBackend {
    fn name(&self) -> &'static str {
        "processes"
    }

    fn check(&mut self) -> Result<(), ExecutorError> {
        let Some(program) = self.launcher.as_ref().and_then(|words| words.first()) else {
            return Ok(());
        };
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let is_found = match program.contains('/') {
            true => Path::new(program).is_file(),
            false => std::env::split_paths(&folders).any(|folder| folder.join(program).is_file()),
        };
        match is_found {
            true => Ok(()),
            false => Err(ExecutorError::Program {
                program: program.clone(),
                why: "there is no such program: install it, or remove executors.launcher"
                    .to_owned(),
            }),
        }
    }

    fn start(&mut self, start: &ExecutorStart<'_>) -> Result<String, ExecutorError> {
        let words = self.arguments(start);
        let (program, arguments) = words.split_first().ok_or_else(|| ExecutorError::Program {
            program: "launcher".to_owned(),
            why: "it has no words".to_owned(),
        })?;
        let log = executor_log(start.folder);
        let failed = |source| FileError::new("write", &log, source);
        let output = File::create(&log).map_err(failed)?;
        let errors = output.try_clone().map_err(failed)?;
        let mut command = Command::new(program);
        command.args(arguments).env_clear();
        let inherited = INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        command.envs(inherited);
        command.env(PARENT_VARIABLE, std::process::id().to_string());
        command.env(DEVICES_VARIABLE, listed(start.devices));
        command.env(
            CUDA_VARIABLE,
            visible(std::env::var(CUDA_VARIABLE).ok().as_deref(), start.devices),
        );
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        // A group of its own: cancelling ends a launcher with all its processes.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command.spawn().map_err(|error| ExecutorError::Program {
            program: program.clone(),
            why: error.to_string(),
        })?;
        let handle = child.id().to_string();
        self.children.insert(handle.clone(), child);
        Ok(handle)
    }

    fn state(&mut self, handle: &str, folder: &Path) -> Result<ExecutorState, ExecutorError> {
        let Some(child) = self.children.get_mut(handle) else {
            return Ok(ExecutorState::Ended("it ended with an earlier run".to_owned()));
        };
        match child.try_wait() {
            Ok(None) => Ok(ExecutorState::Running),
            Ok(Some(_)) => {
                self.children.remove(handle);
                Ok(ExecutorState::Ended(executor_log_end(folder)))
            }
            Err(error) => {
                Err(ExecutorError::Program { program: handle.to_owned(), why: error.to_string() })
            }
        }
    }

    fn cancel(&mut self, handle: &str) -> Result<(), ExecutorError> {
        if let Some(mut child) = self.children.remove(handle) {
            kill_group(&child);
            let _ = child.wait();
        }
        Ok(())
    }

    fn cancel_by_name(&mut self, _: &str) -> Result<(), ExecutorError> {
        Ok(())
    }

    fn outlives_daemon(&self) -> bool {
        false
    }
}

/// Ends a process with its group.
fn kill_group(child: &Child) {
    let group = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(group) = group {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

impl Drop for ProcessBackend {
    fn drop(&mut self) {
        for mut child in std::mem::take(&mut self.children).into_values() {
            kill_group(&child);
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn backend(script: &str, launcher: Option<&[&str]>) -> ProcessBackend {
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        let options = vec!["--engine".to_owned(), "toy".to_owned()];
        let launcher = launcher.map(|words| words.iter().map(|&word| word.to_owned()).collect());
        ProcessBackend::new(ExecutorCommand { command, options }, launcher)
    }

    #[track_caller]
    fn ended(backend: &mut ProcessBackend, handle: &str, folder: &Path) -> String {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(30) {
            if let ExecutorState::Ended(log) = backend.state(handle, folder).unwrap() {
                return log;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the process did not end");
    }

    #[test]
    fn an_executor_has_its_devices_and_none_of_the_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let mut backend = backend("echo $FLORIN_DEVICES $CUDA_VISIBLE_DEVICES; env", None);
        let start = ExecutorStart { name: "one", folder: folder.path(), devices: &[1, 3] };
        let handle = backend.start(&start).unwrap();
        let _ = ended(&mut backend, &handle, folder.path());
        let text = std::fs::read_to_string(executor_log(folder.path())).unwrap();
        assert!(text.starts_with("1,3 1,3\n"), "{text}");
        let names: Vec<&str> =
            text.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
        let own = [PARENT_VARIABLE, DEVICES_VARIABLE, CUDA_VARIABLE, "PWD", "SHLVL", "_", "OLDPWD"];
        for name in names {
            assert!(
                INHERITED.contains(&name) || own.contains(&name),
                "{name} reached the executor"
            );
        }
        assert!(matches!(backend.state(&handle, folder.path()), Ok(ExecutorState::Ended(_))));
    }

    #[test]
    fn a_launcher_starts_an_executor_of_several_devices_alone() {
        let words = ["launch", "-n", "{count}", "--bind", "{devices}"];
        let backend = backend("true", Some(&words));
        let folder = Path::new("/shared/1");
        let of = |devices: &[u32]| {
            backend.arguments(&ExecutorStart { name: "one", folder, devices }).join(" ")
        };
        assert_eq!(of(&[2]), "sh -c true /shared/1 --engine toy");
        assert_eq!(of(&[0, 2]), "launch -n 2 --bind 0,2 sh -c true /shared/1 --engine toy");
    }

    #[test]
    fn a_cancelled_executor_ends_with_its_own_processes() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let script = format!("sleep 100 & echo $! > {}; wait", pid.display());
        let mut backend = backend(&script, None);
        let start = ExecutorStart { name: "one", folder: folder.path(), devices: &[0] };
        let handle = backend.start(&start).unwrap();
        let began = Instant::now();
        let child = loop {
            let text = std::fs::read_to_string(&pid).unwrap_or_default();
            if let Ok(child) = text.trim().parse::<u32>() {
                break child;
            }
            assert!(began.elapsed() < Duration::from_secs(30));
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(backend.state(&handle, folder.path()).unwrap(), ExecutorState::Running);
        backend.cancel(&handle).unwrap();
        backend.cancel(&handle).unwrap();
        while std::path::Path::new(&format!("/proc/{child}/cmdline")).exists()
            && !std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default().is_empty()
        {
            assert!(began.elapsed() < Duration::from_secs(30), "{child} still runs");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn devices_of_cuda_are_those_that_the_daemon_sees() {
        assert_eq!(visible(None, &[0, 2]), "0,2");
        assert_eq!(visible(Some("GPU-a,GPU-b,GPU-c"), &[0, 2]), "GPU-a,GPU-c");
    }

    #[test]
    fn a_missing_launcher_is_found_before_a_deposit() {
        for (launcher, is_found) in [
            (None, true),
            (Some("sh"), true),
            (Some("no-such-mpirun"), false),
            (Some("/no/x"), false),
        ] {
            let words = launcher.map(|word| [word]);
            let mut backend = backend("true", words.as_ref().map(|words| &words[..]));
            assert_eq!(backend.check().is_ok(), is_found, "{launcher:?}");
        }
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let command = vec!["/no/such/program".to_owned()];
        let mut backend =
            ProcessBackend::new(ExecutorCommand { command, options: Vec::new() }, None);
        let start = ExecutorStart { name: "one", folder: folder.path(), devices: &[0] };
        let error = backend.start(&start).unwrap_err().to_string();
        assert!(error.starts_with("/no/such/program: "), "{error}");
    }
}
