//! An anvil process on a free port, which ends with the test.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::U64;
use florin_ledger_ethereum::{Endpoint, HttpEndpoint};
use florin_protocol::Address;
use serde_json::{Value, json};

/// Number of blocks that a check of the chain reads.
const LOOKED_AT: u64 = 24;

/// A running node; killed when dropped.
pub(crate) struct Anvil {
    child: Child,
    pub(crate) endpoint: Arc<dyn Endpoint>,
}

fn program() -> PathBuf {
    let installed = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../contracts/node_modules/@foundry-rs/anvil-linux-amd64/bin/anvil"
    );
    let path = std::env::var_os("FLORIN_ANVIL").map_or_else(|| installed.into(), PathBuf::from);
    assert!(path.exists(), "no anvil at {}: run `cargo xtask setup`", path.display());
    path
}

impl Anvil {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(program())
            .args(["--port", "0", "--accounts", "1"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines
            .find_map(|line| line.unwrap().strip_prefix("Listening on ").map(str::to_owned))
            .expect("anvil prints its address");
        // Discards the later output, so that anvil does not block.
        std::thread::spawn(move || lines.for_each(drop));
        let endpoint = HttpEndpoint::new(&format!("http://{address}")).unwrap();
        Self { child, endpoint: Arc::new(endpoint) }
    }

    /// Sends a request, which must succeed.
    pub(crate) fn ask(&self, method: &str, params: Value) -> Value {
        self.endpoint.call(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Waits until pending transactions are mined, if anvil mines automatically. Anvil responds
    /// before it mines, and loses blocks of a chain that is reorganised meanwhile.
    pub(crate) fn settle(&self) {
        while self.ask("anvil_getAutomine", json!([])) == json!(true)
            && self.ask("txpool_status", json!([]))["pending"] != json!("0x0")
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Replaces the last blocks by empty ones.
    pub(crate) fn reorganise(&self, depth: u64) {
        self.settle();
        self.ask("anvil_reorg", json!([depth, []]));
    }

    /// The first block among the last few that the node has lost or that does not continue its
    /// predecessor.
    pub(crate) fn fault(&self) -> Option<String> {
        let newest: U64 = serde_json::from_value(self.ask("eth_blockNumber", json!([]))).unwrap();
        let newest = newest.to::<u64>();
        let mut parent = Value::Null;
        for number in newest.saturating_sub(LOOKED_AT)..=newest {
            let block = self.ask("eth_getBlockByNumber", json!([format!("{number:#x}"), false]));
            if block.is_null() || (!parent.is_null() && block["parentHash"] != parent) {
                return Some(format!("block {number} of {newest}: {block}"));
            }
            parent = block["hash"].clone();
        }
        None
    }

    /// Sets the balance of an account to a thousand ether.
    pub(crate) fn fuel(&self, account: Address) {
        self.ask("anvil_setBalance", json!([account.to_string(), "0x3635c9adc5dea00000"]));
    }
}

impl Drop for Anvil {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
