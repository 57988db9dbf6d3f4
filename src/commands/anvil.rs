//! `florin anvil`: keeps a development chain for as long as somebody holds its standard input, and leaves nobody behind.
//!
//! A block comes with every transaction and every second besides, so that the chain's clock moves while nothing happens.
//! Neither makes it run ahead of the machine's.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::Context;

use crate::cli::{Anvil, AnvilArg};
use crate::failure::{Exit, Failure};

/// What anvil says when it listens.
const LISTENING: &str = "Listening on ";
/// What to do where there is none.
pub(crate) const REMEDY: &str = "`cargo xtask demo --ledger ethereum` fetches anvil from npm; otherwise install Foundry \
                                 (https://getfoundry.sh), or name the program with --anvil or FLORIN_ANVIL";
/// How long it may take to say so.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked after.
const POLL: Duration = Duration::from_millis(100);

/// Why the keeper stops waiting, or goes on.
enum News {
    Listens(String),
    Let,
}

/// Ends anvil with this process's work, however that ends.
struct Kept(Child);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.kill(); // an error means that it has stopped already
        let _ = self.0.wait();
    }
}

pub(super) fn run(arguments: &Anvil) -> anyhow::Result<Exit> {
    let program = program(&arguments.program);
    let mut command = Command::new(&program);
    command
        .args(["--host", "127.0.0.1", "--port", "0"])
        .args(["--block-time", "1", "--mixed-mining"])
        // Its keys, as everybody knows them; and so that a list of processes says whose it is.
        .arg("--config-out")
        .arg(arguments.address_file.with_extension("json"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut kept = Kept(command.spawn().map_err(|error| missing(&program, &error))?);
    let (tell, news) = channel();
    if let Some(stdout) = kept.0.stdout.take() {
        listen(stdout, tell.clone());
    }
    stop_with_input(tell);
    let address = match news.recv_timeout(PATIENCE) {
        Ok(News::Listens(address)) => address,
        Ok(News::Let) => return Ok(Exit::Done),
        Err(_) => {
            let message = format!("{} did not say {LISTENING:?}: is it anvil?", program.display());
            return Err(Failure::fault("TIMEOUT", message).into());
        }
    };
    write_address(&arguments.address_file, &address)?;
    wait(&mut kept, &news)
}

/// The anvil that was named, or the one on PATH.
pub(crate) fn program(named: &AnvilArg) -> PathBuf {
    named.anvil.clone().unwrap_or_else(|| PathBuf::from("anvil"))
}

/// What to do where there is no anvil.
pub(crate) fn missing(program: &Path, error: &std::io::Error) -> anyhow::Error {
    let message = format!("{} cannot be started ({error}): {REMEDY}", program.display());
    Failure::input("TOOL_MISSING", message).into()
}

/// Finds the address in what anvil says, and goes on reading, so that anvil can go on talking.
fn listen(stdout: impl Read + Send + 'static, tell: Sender<News>) {
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Some(address) = line.strip_prefix(LISTENING) {
                // Nobody listens any more where the keeper is on its way out.
                let _ = tell.send(News::Listens(address.trim().to_owned()));
            }
        }
    });
}

/// Tells when standard input closes, which the system does when whoever holds it is gone.
fn stop_with_input(tell: Sender<News>) {
    std::thread::spawn(move || {
        let mut ignored = [0u8; 64];
        while matches!(std::io::stdin().read(&mut ignored), Ok(read) if read > 0) {}
        let _ = tell.send(News::Let);
    });
}

fn write_address(file: &Path, address: &str) -> anyhow::Result<()> {
    // Whoever waits for the file must not see half of it.
    let unfinished = file.with_extension("unfinished");
    std::fs::write(&unfinished, format!("http://{address}\n"))
        .and_then(|()| std::fs::rename(&unfinished, file))
        .with_context(|| file.display().to_string())
}

fn wait(kept: &mut Kept, news: &Receiver<News>) -> anyhow::Result<Exit> {
    loop {
        if let Some(status) = kept.0.try_wait()? {
            let message = format!("anvil stopped by itself ({status})");
            return Err(Failure::fault("CHILD_FAILED", message).into());
        }
        match news.recv_timeout(POLL) {
            Ok(News::Let) | Err(RecvTimeoutError::Disconnected) => return Ok(Exit::Done),
            Ok(News::Listens(_)) | Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
