//! Child processes, and the paths of the checkout.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;

use crate::failure::Failure;

/// Number of lines of a failed program's error output that are repeated.
const ERROR_LINES_MAX: usize = 30;

/// The root of the checkout.
pub(crate) fn root() -> PathBuf {
    let here = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let here = here.filter(|path| path.ends_with("xtask"));
    let here = here.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    here.parent().map_or_else(|| here.clone(), Path::to_path_buf)
}

/// The folder of all fetched tools except libtorch; ignored by git.
pub(crate) fn tools_folder() -> PathBuf {
    root().join(".tools")
}

/// Runs a program that prints its own messages.
pub(crate) fn run(command: &mut Command) -> Result<ExitStatus, Failure> {
    command.status().map_err(|cause| cannot_start(command, &cause))
}

/// Runs a program silently; returns its standard output, or on failure the end of its error output.
pub(crate) fn capture(command: &mut Command) -> Result<Result<String, String>, Failure> {
    let output =
        command.stdin(Stdio::null()).output().map_err(|cause| cannot_start(command, &cause))?;
    if output.status.success() {
        return Ok(Ok(String::from_utf8_lossy(&output.stdout).into_owned()));
    }
    Ok(Err(last_lines(&String::from_utf8_lossy(&output.stderr))))
}

/// Runs a program with visible progress; on failure returns the end of its error output.
pub(crate) fn run_with_progress(command: &mut Command) -> Result<Result<(), String>, Failure> {
    let progress = if io::stderr().is_terminal() { Stdio::inherit() } else { Stdio::null() };
    let mut child = command
        .stdin(Stdio::null())
        .stdout(progress)
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|cause| cannot_start(command, &cause))?;
    let complaints = child.stderr.take().map(|stderr| thread::spawn(move || read_all(stderr)));
    let status = child.wait().map_err(|cause| cannot_start(command, &cause))?;
    let error_output = complaints.and_then(|reader| reader.join().ok()).unwrap_or_default();
    Ok(if status.success() { Ok(()) } else { Err(last_lines(&error_output)) })
}

/// Runs a program and forwards its standard output, after passing each line to the callback.
pub(crate) fn tee(
    command: &mut Command,
    mut on_line: impl FnMut(&str),
) -> Result<ExitStatus, Failure> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|cause| cannot_start(command, &cause))?;
    if let Some(stdout) = child.stdout.take() {
        let mut out = io::stdout().lock();
        for line in BufReader::new(stdout).split(b'\n') {
            let Ok(line) = line else { break };
            on_line(&String::from_utf8_lossy(&line));
            // A closed pipe on standard output must not stop the tests.
            let _ = out.write_all(&line).and_then(|()| out.write_all(b"\n"));
        }
    }
    child.wait().map_err(|cause| cannot_start(command, &cause))
}

/// Replaces this process by another program (exec), so that its exit code and signals are handled
/// directly. Returns only on failure.
pub(crate) fn exec(command: &mut Command) -> Failure {
    use std::os::unix::process::CommandExt;
    let cause = command.exec();
    cannot_start(command, &cause)
}

/// Whether PATH contains a program of this name.
pub(crate) fn is_on_path(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// `folder` followed by the current value of the variable.
pub(crate) fn prepend_path(variable: &str, folder: &Path) -> OsString {
    prepend(&env::var_os(variable).unwrap_or_default(), folder)
}

/// `folder` followed by a list of folders.
pub(crate) fn prepend(before: &OsStr, folder: &Path) -> OsString {
    let folders = std::iter::once(folder.to_path_buf())
        .chain(env::split_paths(before).filter(|folder| !folder.as_os_str().is_empty()));
    env::join_paths(folders).unwrap_or_else(|_| folder.as_os_str().to_owned())
}

fn read_all(stream: impl io::Read) -> String {
    let lines = BufReader::new(stream).split(b'\n').map_while(Result::ok);
    let mut output = String::new();
    for line in lines {
        output.push_str(&String::from_utf8_lossy(&line));
        output.push('\n');
    }
    output
}

fn last_lines(output: &str) -> String {
    let lines: Vec<&str> = output.lines().filter(|line| !line.trim().is_empty()).collect();
    let first = lines.len().saturating_sub(ERROR_LINES_MAX);
    lines[first..].iter().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}

fn cannot_start(command: &Command, cause: &io::Error) -> Failure {
    let program = command.get_program().to_string_lossy();
    Failure::new(
        "PROGRAM_MISSING",
        format!("`{program}` could not be run: {cause}"),
        format!("install it, or add the folder that contains `{program}` to PATH"),
    )
}
