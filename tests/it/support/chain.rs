//! The Ethereum chain of a test: anvil, a market's contracts, and tokens and ether for all
//! accounts.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use florin_ledger::Ledger;
use florin_ledger_ethereum::{
    Deployment, Endpoint, EthereumLedger, HttpEndpoint, Settings, Token, deploy,
};
use florin_participant::{KeystoreStrength, Secret, Wallet};
use florin_protocol::{Address, Amount, WalletSigner};
use serde_json::json;

use super::process::{PATIENCE, command, until};

/// Anvil's well-known recovery phrase.
const PHRASE: &str = "test test test test test test test test test test test junk";
/// A thousand ether.
const PLENTY: &str = "0x3635c9adc5dea00000";

/// The ledger of a test's market.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    /// The coordinator's embedded ledger.
    Embedded,
    /// Contracts on anvil.
    Ethereum,
}

/// Defines two tests of a function that takes an [`On`]: one for each ledger.
macro_rules! on_both {
    ($($name:ident),+ $(,)?) => { $(
        mod $name {
            use crate::support::On;

            #[test]
            fn on_the_embedded_ledger() {
                super::$name(On::Embedded);
            }

            #[test]
            fn on_ethereum() {
                super::$name(On::Ethereum);
            }
        }
    )+ };
}
pub(crate) use on_both;

/// A running anvil. Its supervisor process exits with the test, and stops anvil.
pub(crate) struct AnvilProcess {
    supervisor: Child,
    pub(crate) rpc: String,
}

/// The path of anvil: from the environment, or as installed by `cargo xtask setup`.
pub(crate) fn anvil() -> PathBuf {
    let fetched = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/contracts/node_modules/@foundry-rs/anvil-linux-amd64/bin/anvil"
    );
    let path = std::env::var_os("FLORIN_ANVIL").map_or_else(|| fetched.into(), PathBuf::from);
    assert!(
        path.exists(),
        "no anvil at {}: run `cargo xtask setup`, or set FLORIN_ANVIL",
        path.display()
    );
    path
}

impl AnvilProcess {
    /// Starts anvil; its URL is written to a file in this folder.
    pub(crate) fn start(folder: &Path) -> Self {
        let address = folder.join("chain-address");
        let (file, program) = (address.display().to_string(), anvil().display().to_string());
        let supervisor = command(&["anvil", "--address-file", &file, "--anvil", &program])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("the program must start");
        let rpc = until("anvil's start", || std::fs::read_to_string(&address).ok());
        Self { supervisor, rpc: rpc.trim().to_owned() }
    }

    /// The RPC endpoint of anvil.
    pub(crate) fn endpoint(&self) -> Arc<dyn Endpoint> {
        Arc::new(HttpEndpoint::new(&self.rpc).unwrap())
    }

    /// Gives an account more ether than it can spend.
    pub(crate) fn fuel(&self, account: Address) {
        self.set_ether(account, PLENTY);
    }

    /// Sets an account's ether, in hexadecimal wei.
    pub(crate) fn set_ether(&self, account: Address, wei: &str) {
        let params = json!([account.to_string(), wei]);
        self.endpoint().call("anvil_setBalance", params).expect("anvil sets balances");
    }
}

impl Drop for AnvilProcess {
    fn drop(&mut self) {
        drop(self.supervisor.stdin.take());
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE && matches!(self.supervisor.try_wait(), Ok(None)) {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let _ = self.supervisor.kill(); // normally it has exited already
        let _ = self.supervisor.wait();
    }
}

/// A chain with the contracts of a market.
pub(crate) struct TestChain {
    pub(crate) anvil: AnvilProcess,
    pub(crate) deployment: Deployment,
    folder: PathBuf,
}

impl TestChain {
    /// Deploys the contracts, and funds all accounts with tokens and ether. The deployment is in
    /// `deployment.toml` of the folder.
    pub(crate) fn open(folder: &Path, purses: &[(Address, Amount)]) -> Self {
        let anvil = AnvilProcess::start(folder);
        let passphrase = Secret::from_file(&folder.join("passphrase")).unwrap();
        let phrase = Secret::new(PHRASE.to_owned());
        let file = folder.join("deployer.json");
        let deployer =
            Wallet::import_phrase(&file, &phrase, &passphrase, KeystoreStrength::Light).unwrap();
        let supply = Amount::total(purses.iter().map(|(_, purse)| *purse)).unwrap();
        let token = Token::New { supply, holder: deployer.address() };
        let outbox = folder.join("deployer.outbox");
        let deployment =
            deploy(&anvil.endpoint(), &deployer, token, Settings::default(), &outbox).unwrap();
        let chain = Self { anvil, deployment, folder: folder.to_owned() };
        let text = toml::to_string(&chain.deployment).unwrap();
        std::fs::write(chain.deployment_file(), text).unwrap();
        let ledger = chain.ledger_with("deployer.outbox");
        for (account, purse) in purses {
            chain.anvil.fuel(*account);
            ledger.transfer(&deployer, *account, *purse).unwrap();
        }
        chain
    }

    /// The deployment file.
    pub(crate) fn deployment_file(&self) -> PathBuf {
        self.folder.join("deployment.toml")
    }

    /// The ledger for reads by the test, and for writes of accounts without a process.
    pub(crate) fn ledger(&self) -> EthereumLedger {
        self.ledger_with("test.outbox")
    }

    fn ledger_with(&self, outbox: &str) -> EthereumLedger {
        let (settings, outbox) = (Settings::default(), self.folder.join(outbox));
        EthereumLedger::open(self.anvil.endpoint(), self.deployment, settings, &outbox).unwrap()
    }
}

/// A proxy to a node that can be shut. Its threads end with the test's process.
pub(crate) struct Gate {
    pub(crate) url: String,
    shut: Arc<AtomicBool>,
    delay_ms: Arc<AtomicU64>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Gate {
    /// An open gate to a node.
    pub(crate) fn before(node: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let upstream = node.strip_prefix("http://").unwrap().to_owned();
        let gate =
            Self { url, shut: Arc::default(), delay_ms: Arc::default(), open: Arc::default() };
        let (shut, open) = (Arc::clone(&gate.shut), Arc::clone(&gate.open));
        let delay_ms = Arc::clone(&gate.delay_ms);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if shut.load(Ordering::SeqCst) {
                    continue; // closes the connection
                }
                let Ok(server) = TcpStream::connect(&upstream) else { continue };
                let mut all = open.lock().unwrap();
                all.extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
                let (back, forth) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let delay_ms = Arc::clone(&delay_ms);
                std::thread::spawn(move || forward(client, server, &delay_ms));
                std::thread::spawn(move || forward(forth, back, &AtomicU64::default()));
            }
        });
        gate
    }

    /// Cuts every connection, and refuses new ones.
    pub(crate) fn shut(&self) {
        self.shut.store(true, Ordering::SeqCst);
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both); // the peer may have closed it already
        }
    }

    /// Delays every request from now on.
    pub(crate) fn delay(&self, ms: u64) {
        self.delay_ms.store(ms, Ordering::SeqCst);
    }

    /// Accepts connections again.
    pub(crate) fn open(&self) {
        self.shut.store(false, Ordering::SeqCst);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, delay_ms: &AtomicU64) {
    let mut bytes = [0u8; 16 * 1024];
    while let Ok(count) = from.read(&mut bytes) {
        std::thread::sleep(std::time::Duration::from_millis(delay_ms.load(Ordering::SeqCst)));
        if count == 0 || to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
