//! Settings: one typed, validated structure. Unknown keys are errors, and every key says what it means.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use florin_ledger::ethereum::Settings;
use florin_ledger::limits::CONFIRMATIONS_MAX;
use serde::Deserialize;

/// Longest wait of a long poll, in milliseconds.
pub const WAIT_MS_MAX: u64 = 30_000;

/// Bytes in a MiB.
pub(crate) const MIB: u64 = 1_024 * 1_024;

/// What the updates of one round may take together unless the settings say otherwise, in bytes (8 GiB): they are read
/// together when the round is valued.
pub const ROUND_BYTES_MAX: u64 = 8 * 1_024 * MIB;

/// A coordinator's settings. [`KEYS`] documents each.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where to listen.
    pub listen: SocketAddr,
    /// The data folder.
    pub data: PathBuf,
    /// Address and port of `/metrics`, `/healthz` and `/readyz` for the operator; none unless set.
    #[serde(default)]
    pub metrics_listen: Option<SocketAddr>,
    /// Connections at once.
    #[serde(default = "defaults::connections_max")]
    pub connections_max: usize,
    /// Connections at once from one address.
    #[serde(default = "defaults::connections_per_address_max")]
    pub connections_per_address_max: usize,
    /// Milliseconds for a request's head, and for a connection without a request.
    #[serde(default = "defaults::header_ms")]
    pub header_ms: u64,
    /// Milliseconds for a request's body, beyond what its size takes.
    #[serde(default = "defaults::body_ms")]
    pub body_ms: u64,
    /// Slowest upload, in bytes per second.
    #[serde(default = "defaults::bytes_per_second_min")]
    pub bytes_per_second_min: u64,
    /// Milliseconds a client may take none of an answer.
    #[serde(default = "defaults::stall_ms")]
    pub stall_ms: u64,
    /// Bytes of updates that are checked at once, in MiB; models and holdouts have as much besides.
    #[serde(default = "defaults::in_flight_mib")]
    pub in_flight_mib: u64,
    /// Largest uploaded holdout, in MiB.
    #[serde(default = "defaults::holdout_mib_max")]
    pub holdout_mib_max: u64,
    /// Most that the updates of one round may take together, in MiB.
    #[serde(default = "defaults::round_mib_max")]
    pub round_mib_max: u64,
    /// How it behaves towards an Ethereum node, where the market is on one.
    #[serde(default)]
    pub ethereum: Settings,
}

mod defaults {
    pub(super) const fn connections_max() -> usize {
        512
    }
    pub(super) const fn connections_per_address_max() -> usize {
        256
    }
    pub(super) const fn header_ms() -> u64 {
        20_000
    }
    pub(super) const fn body_ms() -> u64 {
        30_000
    }
    pub(super) const fn bytes_per_second_min() -> u64 {
        64 * 1_024
    }
    pub(super) const fn stall_ms() -> u64 {
        30_000
    }
    pub(super) const fn in_flight_mib() -> u64 {
        256
    }
    pub(super) const fn holdout_mib_max() -> u64 {
        1_024
    }
    pub(super) const fn round_mib_max() -> u64 {
        super::ROUND_BYTES_MAX / super::MIB
    }
}

/// What a key means.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// As it is written in the file.
    pub name: &'static str,
    /// In words.
    pub meaning: &'static str,
    /// What it may be.
    pub bounds: &'static str,
    /// A value that works.
    pub example: &'static str,
    /// The environment variable that overrides the file.
    pub variable: &'static str,
}

/// Every key there is.
pub const KEYS: &[Key] = &[
    Key {
        name: "listen",
        meaning: "address and port to listen on; port 0 takes a free one",
        bounds: "an IP address and a port",
        example: "\"127.0.0.1:7700\"",
        variable: "FLORIN_COORDINATOR_LISTEN",
    },
    Key {
        name: "data",
        meaning: "folder for the journal and the blobs; one process at a time",
        bounds: "a folder that can be written",
        example: "\"market/coordinator\"",
        variable: "FLORIN_COORDINATOR_DATA",
    },
    Key {
        name: "metrics_listen",
        meaning: "address and port of /metrics, /healthz and /readyz, for the operator and not for \
                  the internet; none unless set",
        bounds: "an IP address and a port",
        example: "\"127.0.0.1:7701\"",
        variable: "FLORIN_COORDINATOR_METRICS_LISTEN",
    },
    Key {
        name: "connections_max",
        meaning: "connections at once; keep it below the limit of open files",
        bounds: "1 to 100000, default 512",
        example: "512",
        variable: "FLORIN_COORDINATOR_CONNECTIONS_MAX",
    },
    Key {
        name: "connections_per_address_max",
        meaning: "connections at once from one IP address",
        bounds: "1 to 100000, default 256",
        example: "256",
        variable: "FLORIN_COORDINATOR_CONNECTIONS_PER_ADDRESS_MAX",
    },
    Key {
        name: "header_ms",
        meaning: "milliseconds a client has for a request's head, idle time before it included",
        bounds: "100 to 60000, default 20000",
        example: "20000",
        variable: "FLORIN_COORDINATOR_HEADER_MS",
    },
    Key {
        name: "body_ms",
        meaning: "milliseconds a client has for a request's body, beyond what its size takes",
        bounds: "100 to 600000, default 30000",
        example: "30000",
        variable: "FLORIN_COORDINATOR_BODY_MS",
    },
    Key {
        name: "bytes_per_second_min",
        meaning: "slowest upload: a body of n bytes has n / this many seconds more, and whoever sends \
                  less than this over body_ms is cut off",
        bounds: "1024 to 1000000000, default 65536",
        example: "65536",
        variable: "FLORIN_COORDINATOR_BYTES_PER_SECOND_MIN",
    },
    Key {
        name: "stall_ms",
        meaning: "milliseconds after which a client that takes none of its answer is cut off",
        bounds: "100 to 600000, default 30000",
        example: "30000",
        variable: "FLORIN_COORDINATOR_STALL_MS",
    },
    Key {
        name: "in_flight_mib",
        meaning: "MiB of updates that are checked at once, and of models and holdouts besides; \
                  others wait",
        bounds: "1 to 1048576, default 256",
        example: "256",
        variable: "FLORIN_COORDINATOR_IN_FLIGHT_MIB",
    },
    Key {
        name: "holdout_mib_max",
        meaning: "largest holdout a buyer may upload, in MiB",
        bounds: "1 to 4096, default 1024",
        example: "1024",
        variable: "FLORIN_COORDINATOR_HOLDOUT_MIB_MAX",
    },
    Key {
        name: "round_mib_max",
        meaning: "most MiB that the updates of one round may take together: a task whose model times \
                  its participants takes more is refused",
        bounds: "1 to 1048576, default 8192",
        example: "8192",
        variable: "FLORIN_COORDINATOR_ROUND_MIB_MAX",
    },
    Key {
        name: "ethereum.confirmations",
        meaning: "how many blocks deep something must be before it counts, its own block included",
        bounds: "1 to 64, default 1",
        example: "3",
        variable: "FLORIN_COORDINATOR_ETHEREUM_CONFIRMATIONS",
    },
    Key {
        name: "ethereum.gas_max",
        meaning: "most gas that one transaction may use",
        bounds: "100000 to 1000000000, default 3000000",
        example: "3000000",
        variable: "FLORIN_COORDINATOR_ETHEREUM_GAS_MAX",
    },
    Key {
        name: "ethereum.fee_max_wei",
        meaning: "most that a unit of gas may cost, in wei",
        bounds: "1 to 1000000000000000, default 100000000000",
        example: "100000000000",
        variable: "FLORIN_COORDINATOR_ETHEREUM_FEE_MAX_WEI",
    },
    Key {
        name: "ethereum.resubmit_ms",
        meaning: "milliseconds after which a transaction that no block has taken goes out again with \
                  a higher fee",
        bounds: "1000 to 86400000, default 45000",
        example: "45000",
        variable: "FLORIN_COORDINATOR_ETHEREUM_RESUBMIT_MS",
    },
    Key {
        name: "ethereum.patience_ms",
        meaning: "milliseconds after which a write gives up waiting; its transaction stays in the \
                  outbox",
        bounds: "1000 to 86400000, default 300000",
        example: "300000",
        variable: "FLORIN_COORDINATOR_ETHEREUM_PATIENCE_MS",
    },
    Key {
        name: "ethereum.poll_ms_max",
        meaning: "longest pause between two looks at the chain, in milliseconds",
        bounds: "10 to 60000, default 1000",
        example: "1000",
        variable: "FLORIN_COORDINATOR_ETHEREUM_POLL_MS_MAX",
    },
    Key {
        name: "ethereum.log_blocks_max",
        meaning: "most blocks that one question for events covers; halved where a node refuses",
        bounds: "1 to 1000000, default 10000",
        example: "10000",
        variable: "FLORIN_COORDINATOR_ETHEREUM_LOG_BLOCKS_MAX",
    },
];

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No TOML, an unknown key, or a value of the wrong kind.
    #[error("settings: {0} [BAD_SETTINGS]")]
    Unreadable(String),
    /// Out of bounds.
    #[error("settings: {key} = {value}: use {bounds} [BAD_SETTINGS]")]
    OutOfBounds {
        /// Which key.
        key: &'static str,
        /// Its value.
        value: u64,
        /// What would be right.
        bounds: &'static str,
    },
}

impl Config {
    /// Settings with the defaults, for an address and a folder.
    #[must_use]
    pub fn new(listen: SocketAddr, data: PathBuf) -> Self {
        Self {
            listen,
            data,
            metrics_listen: None,
            connections_max: defaults::connections_max(),
            connections_per_address_max: defaults::connections_per_address_max(),
            header_ms: defaults::header_ms(),
            body_ms: defaults::body_ms(),
            bytes_per_second_min: defaults::bytes_per_second_min(),
            stall_ms: defaults::stall_ms(),
            in_flight_mib: defaults::in_flight_mib(),
            holdout_mib_max: defaults::holdout_mib_max(),
            round_mib_max: defaults::round_mib_max(),
            ethereum: Settings::default(),
        }
    }

    /// Reads settings from a TOML text, each key overridden by its variable where `variable` knows it.
    ///
    /// # Errors
    /// [`ConfigError`], with the key.
    pub fn read(
        text: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let unreadable = |error: toml::de::Error| ConfigError::Unreadable(error.to_string());
        let mut table: toml::Table = text.parse().map_err(unreadable)?;
        for key in KEYS {
            if let Some(value) = variable(key.variable) {
                let number = value.parse::<i64>().ok().filter(|_| !key.example.starts_with('"'));
                let value = number.map_or(toml::Value::String(value), toml::Value::Integer);
                set(&mut table, key.name, value);
            }
        }
        let config: Self = table.try_into().map_err(unreadable)?;
        config.check()?;
        Ok(config)
    }

    /// Whether every setting is within its bounds.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wide = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let chain = &self.ethereum;
        let fee_max_wei = u64::try_from(chain.fee_max_wei).unwrap_or(u64::MAX);
        let all = [
            ("connections_max", wide(self.connections_max), 1, 100_000),
            ("connections_per_address_max", wide(self.connections_per_address_max), 1, 100_000),
            ("header_ms", self.header_ms, 100, 60_000),
            ("body_ms", self.body_ms, 100, 600_000),
            ("bytes_per_second_min", self.bytes_per_second_min, 1_024, 1_000_000_000),
            ("stall_ms", self.stall_ms, 100, 600_000),
            ("in_flight_mib", self.in_flight_mib, 1, 1_048_576),
            ("holdout_mib_max", self.holdout_mib_max, 1, 4_096),
            ("round_mib_max", self.round_mib_max, 1, 1_048_576),
            ("ethereum.confirmations", chain.confirmations, 1, CONFIRMATIONS_MAX),
            ("ethereum.gas_max", chain.gas_max, 100_000, 1_000_000_000),
            ("ethereum.fee_max_wei", fee_max_wei, 1, 1_000_000_000_000_000),
            ("ethereum.resubmit_ms", chain.resubmit_ms, 1_000, 86_400_000),
            ("ethereum.patience_ms", chain.patience_ms, 1_000, 86_400_000),
            ("ethereum.poll_ms_max", chain.poll_ms_max, 10, 60_000),
            ("ethereum.log_blocks_max", chain.log_blocks_max, 1, 1_000_000),
        ];
        for (key, value, least, most) in all {
            if !(least..=most).contains(&value) {
                let known = KEYS.iter().find(|known| known.name == key);
                let bounds = known.map_or("", |known| known.bounds);
                return Err(ConfigError::OutOfBounds { key, value, bounds });
            }
        }
        Ok(())
    }

    /// How long a body of `bytes` may take.
    #[must_use]
    pub fn body_time(&self, bytes: u64) -> Duration {
        let by_size = bytes.saturating_mul(1_000).checked_div(self.bytes_per_second_min);
        Duration::from_millis(self.body_ms.saturating_add(by_size.unwrap_or_default()))
    }
}

/// Sets a key, or a key of a table where its name has a dot.
fn set(table: &mut toml::Table, name: &str, value: toml::Value) {
    let Some((inner, name)) = name.split_once('.') else {
        table.insert(name.to_owned(), value);
        return;
    };
    let empty = || toml::Value::Table(toml::Table::new());
    // Something else under the table's name is refused when everything is read.
    if let Some(inner) = table.entry(inner).or_insert_with(empty).as_table_mut() {
        inner.insert(name.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALLEST: &str = "listen = \"127.0.0.1:0\"\ndata = \"folder\"\n";

    fn none(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn every_key_is_documented_with_an_example_that_works() {
        let text: String =
            KEYS.iter().map(|key| format!("{} = {}\n", key.name, key.example)).collect();
        Config::read(&text, none).unwrap();
        for key in KEYS {
            let without: String = text
                .lines()
                .filter(|line| !line.starts_with(key.name))
                .collect::<Vec<_>>()
                .join("\n");
            let needed = key.name == "listen" || key.name == "data";
            assert_eq!(Config::read(&without, none).is_err(), needed, "{}", key.name);
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_file() {
        let config = Config::read(SMALLEST, none).unwrap();
        assert_eq!(config, Config::new("127.0.0.1:0".parse().unwrap(), "folder".into()));
    }

    #[test]
    fn an_unknown_key_is_named() {
        let error = Config::read(&format!("{SMALLEST}lisen = 1"), none).unwrap_err();
        assert!(error.to_string().contains("lisen"), "{error}");
    }

    #[test]
    fn a_value_out_of_bounds_is_refused_with_what_would_be_right() {
        let error = Config::read(&format!("{SMALLEST}header_ms = 5"), none).unwrap_err();
        assert!(error.to_string().contains("header_ms = 5: use 100 to 60000"), "{error}");
    }

    #[test]
    fn a_variable_wins_over_the_file() {
        let variable = |name: &str| match name {
            "FLORIN_COORDINATOR_HEADER_MS" => Some("5000".to_owned()),
            "FLORIN_COORDINATOR_DATA" => Some("7".to_owned()),
            _ => None,
        };
        let config = Config::read(SMALLEST, variable).unwrap();
        assert_eq!((config.header_ms, config.data), (5_000, PathBuf::from("7")));
    }

    #[test]
    fn the_chain_has_a_table_of_its_own() {
        let text = format!("{SMALLEST}[ethereum]\nconfirmations = 6\nfee_max_wei = 30000000000\n");
        let variable = |name: &str| match name {
            "FLORIN_COORDINATOR_ETHEREUM_GAS_MAX" => Some("200000".to_owned()),
            _ => None,
        };
        let chain = Config::read(&text, variable).unwrap().ethereum;
        let expected = Settings {
            confirmations: 6,
            fee_max_wei: 30_000_000_000,
            gas_max: 200_000,
            ..Settings::default()
        };
        assert_eq!(chain, expected);
        let shallow = format!("{SMALLEST}[ethereum]\nconfirmations = 0\n");
        let error = Config::read(&shallow, none).unwrap_err();
        assert!(error.to_string().contains("ethereum.confirmations = 0: use 1 to"), "{error}");
        for wrong in ["[ethereum]\nconfirmation = 6\n", "ethereum = 6\n"] {
            assert!(Config::read(&format!("{SMALLEST}{wrong}"), none).is_err(), "{wrong}");
        }
    }
}
