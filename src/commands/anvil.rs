//! `florin anvil`: runs a development chain until standard input closes, and then stops it.
//!
//! Anvil mines a block for every transaction and one per second, so that the chain's clock advances
//! while the chain is idle. Neither makes the chain's clock run ahead of the machine's.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::Context;

use crate::anvil;
use crate::cli::AnvilArgs;
use crate::failure::{Exit, Failure};

/// The line that anvil prints once it listens.
const LISTENING: &str = "Listening on ";
/// Timeout of anvil's start.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval of the checks that anvil still runs.
const POLL: Duration = Duration::from_millis(100);

/// An event for the main thread.
enum AnvilEvent {
    Listening(String),
    InputClosed,
}

/// Kills anvil on drop, and removes its states of old blocks: by default anvil writes them to the
/// home folder, some hundreds of megabytes for each chain, and leaves them there when it is killed.
struct AnvilGuard {
    child: Child,
    states: PathBuf,
}

impl Drop for AnvilGuard {
    fn drop(&mut self) {
        let _ = self.child.kill(); // an error means that anvil has already exited
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.states); // absent if the chain was short
    }
}

pub(super) fn run(arguments: &AnvilArgs) -> anyhow::Result<Exit> {
    let program = anvil::program(&arguments.program);
    let states = arguments.address_file.with_extension("states");
    let mut command = Command::new(&program);
    command
        .args(["--host", "127.0.0.1", "--port", "0"])
        .args(["--block-time", "1", "--mixed-mining"])
        // The file with anvil's well-known keys; its path also identifies the owner in a process
        // list.
        .arg("--config-out")
        .arg(arguments.address_file.with_extension("json"))
        .arg("--cache-path")
        .arg(&states)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let child = command.spawn().map_err(|error| anvil::missing(&program, &error))?;
    let mut guard = AnvilGuard { child, states };
    let (sender, events) = channel();
    if let Some(stdout) = guard.child.stdout.take() {
        listen(stdout, sender.clone());
    }
    watch_input(sender);
    let address = match events.recv_timeout(PATIENCE) {
        Ok(AnvilEvent::Listening(address)) => address,
        Ok(AnvilEvent::InputClosed) => return Ok(Exit::Done),
        Err(_) => {
            let message = format!(
                "{} did not print {LISTENING:?}: check that it is anvil",
                program.display()
            );
            return Err(Failure::fault("TIMEOUT", message).into());
        }
    };
    write_address(&arguments.address_file, &address)?;
    wait(&mut guard, &events)
}

/// Finds the address in anvil's output, and continues to read, so that anvil never blocks on a full
/// pipe.
fn listen(stdout: impl Read + Send + 'static, sender: Sender<AnvilEvent>) {
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Some(address) = line.strip_prefix(LISTENING) {
                // The receiver is gone if the main thread is exiting.
                let _ = sender.send(AnvilEvent::Listening(address.trim().to_owned()));
            }
        }
    });
}

/// Sends an event when standard input closes, which happens when the parent process ends.
fn watch_input(sender: Sender<AnvilEvent>) {
    std::thread::spawn(move || {
        let mut ignored = [0u8; 64];
        while matches!(std::io::stdin().read(&mut ignored), Ok(read) if read > 0) {}
        let _ = sender.send(AnvilEvent::InputClosed);
    });
}

fn write_address(file: &Path, address: &str) -> anyhow::Result<()> {
    // The file appears under its name only when it is complete.
    let unfinished = file.with_extension("unfinished");
    std::fs::write(&unfinished, format!("http://{address}\n"))
        .and_then(|()| std::fs::rename(&unfinished, file))
        .with_context(|| file.display().to_string())
}

fn wait(guard: &mut AnvilGuard, news: &Receiver<AnvilEvent>) -> anyhow::Result<Exit> {
    loop {
        if let Some(status) = guard.child.try_wait()? {
            let message = format!("anvil exited unexpectedly ({status})");
            return Err(Failure::fault("CHILD_FAILED", message).into());
        }
        match news.recv_timeout(POLL) {
            Ok(AnvilEvent::InputClosed) | Err(RecvTimeoutError::Disconnected) => {
                return Ok(Exit::Done);
            }
            Ok(AnvilEvent::Listening(_)) | Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
