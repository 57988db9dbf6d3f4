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
const CHECKED_BLOCKS: u64 = 24;

/// Number of blocks whose states the node has, in memory. Without a limit anvil writes older ones to
/// the home folder, and leaves hundreds of megabytes there when a test kills it.
const STATES: &str = "512";

/// A running node; killed when dropped.
pub(crate) struct AnvilNode {
    child: Child,
    pub(crate) endpoint: Arc<dyn Endpoint>,
}

fn program() -> PathBuf {
    let installed = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../contracts/node_modules/@foundry-rs/anvil-linux-amd64/bin/anvil"
    );
    let path = std::env::var_os("FLORIN_ANVIL").map_or_else(|| installed.into(), PathBuf::from);
    assert!(path.exists(), "no anvil at {}: run `cargo xtask setup`", path.display());
    path
}

impl AnvilNode {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(program())
            .args(["--port", "0", "--accounts", "1", "--prune-history", STATES])
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
    pub(crate) fn request(&self, method: &str, params: Value) -> Value {
        self.endpoint.call(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Waits until pending transactions are mined, if anvil mines automatically. Anvil responds
    /// before it mines, and loses blocks of a chain that is reorganised meanwhile.
    pub(crate) fn wait_until_mined(&self) {
        while self.request("anvil_getAutomine", json!([])) == json!(true)
            && self.request("txpool_status", json!([]))["pending"] != json!("0x0")
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Replaces the last blocks by empty ones.
    pub(crate) fn reorganise(&self, depth: u64) {
        self.wait_until_mined();
        self.request("anvil_reorg", json!([depth, []]));
    }

    /// The first block among the last few that the node has lost or that does not continue its
    /// predecessor.
    pub(crate) fn chain_fault(&self) -> Option<String> {
        let newest: U64 =
            serde_json::from_value(self.request("eth_blockNumber", json!([]))).unwrap();
        let newest = newest.to::<u64>();
        let mut parent = Value::Null;
        for number in newest.saturating_sub(CHECKED_BLOCKS)..=newest {
            let block =
                self.request("eth_getBlockByNumber", json!([format!("{number:#x}"), false]));
            if block.is_null() || (!parent.is_null() && block["parentHash"] != parent) {
                return Some(format!("block {number} of {newest}: {block}"));
            }
            parent = block["hash"].clone();
        }
        None
    }

    /// Sets the balance of an account to a thousand ether.
    pub(crate) fn fund_gas(&self, account: Address) {
        self.request("anvil_setBalance", json!([account.to_string(), "0x3635c9adc5dea00000"]));
    }
}

impl Drop for AnvilNode {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
