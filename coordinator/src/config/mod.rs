//! The settings: one typed, validated structure. An unknown key is an error, and every key is
//! documented.

mod journal;
mod keys;
mod listener;
mod listings;
mod network;
mod uploads;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use florin_learning::ScratchSpace;
use florin_ledger::ethereum::Settings;
use florin_ledger::limits::CONFIRMATIONS_MAX;
use florin_protocol::{Address, Digest};
use florin_store::bucket::BucketSettingsError;
use florin_work::TRANSCRIPT_PARTS;
use serde::Deserialize;

pub use florin_store::bucket::BucketSettings;
pub use journal::JournalSettings;
pub use keys::{KEYS, SettingKey};
pub use listener::{Http2Settings, OtlpSettings, RateLimits, TlsSettings};
pub use listings::ListingSettings;
pub(crate) use network::rate_limit_address;
pub use network::{IpNetwork, ParseIpNetworkError};
pub use uploads::UploadSettings;

/// Longest wait of a long poll, in milliseconds.
pub const WAIT_MS_MAX: u64 = 30_000;

/// Most entries in a list of the settings.
pub const LIST_MAX: u64 = 64;

/// Bytes in a MiB.
pub(crate) const MIB: u64 = 1_024 * 1_024;

/// Default limit of the decoded updates of one round, in bytes (8 GiB). They are read together when
/// the round is valued.
pub const ROUND_BYTES_MAX: u64 = 8 * 1_024 * MIB;

/// Default of [`Config::valuation_parts`].
pub const VALUATION_PARTS_DEFAULT: u32 = 2;

/// The settings of a coordinator. [`KEYS`] documents each key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address and port of the HTTP listener.
    #[serde(default = "defaults::listen")]
    pub listen: SocketAddr,
    /// The data folder.
    pub data: PathBuf,
    /// Address and port of `/metrics`, `/healthz` and `/readyz` for the operator; disabled unless
    /// set.
    #[serde(default)]
    pub metrics_listen: Option<SocketAddr>,
    /// Whether the page for people is served.
    #[serde(default = "defaults::page")]
    pub page: bool,
    /// Maximum number of connections.
    #[serde(default = "defaults::connections_max")]
    pub connections_max: usize,
    /// Maximum number of connections from one IPv4 address or IPv6 /64.
    #[serde(default = "defaults::connections_per_address_max")]
    pub connections_per_address_max: usize,
    /// Milliseconds for the headers of a request, also for the first one of a connection.
    #[serde(default = "defaults::header_ms")]
    pub header_ms: u64,
    /// Maximum size of the request headers, in bytes.
    #[serde(default = "defaults::header_bytes_max")]
    pub header_bytes_max: usize,
    /// Milliseconds that an idle connection stays open between two requests.
    #[serde(default = "defaults::idle_ms")]
    pub idle_ms: u64,
    /// Maximum size of any request body, in MiB.
    #[serde(default = "defaults::body_mib_max")]
    pub body_mib_max: u64,
    /// Milliseconds for a request body, in addition to the time for its size.
    #[serde(default = "defaults::body_ms")]
    pub body_ms: u64,
    /// Minimum upload rate, in bytes per second.
    #[serde(default = "defaults::bytes_per_second_min")]
    pub bytes_per_second_min: u64,
    /// Milliseconds after which a client that reads none of its response is disconnected.
    #[serde(default = "defaults::stall_ms")]
    pub stall_ms: u64,
    /// Milliseconds that in-flight requests have to finish during a graceful shutdown.
    #[serde(default = "defaults::shutdown_ms")]
    pub shutdown_ms: u64,
    /// Proxies whose `X-Forwarded-For` header is trusted.
    #[serde(default)]
    pub trusted_proxies: Vec<IpNetwork>,
    /// Arbiters, besides the coordinator itself, of the tasks that the coordinator accepts.
    #[serde(default)]
    pub arbiters: Vec<Address>,
    /// Digests of the trainers that this machine runs as the models of tasks.
    #[serde(default)]
    pub trainers: Vec<Digest>,
    /// MiB of updates that are checked at the same time, and the same again for models and
    /// holdouts.
    #[serde(default = "defaults::in_flight_mib")]
    pub in_flight_mib: u64,
    /// Maximum size of an uploaded holdout, in MiB.
    #[serde(default = "defaults::holdout_mib_max")]
    pub holdout_mib_max: u64,
    /// Maximum MiB of all decoded updates of one round.
    #[serde(default = "defaults::round_mib_max")]
    pub round_mib_max: u64,
    /// MiB of decoded updates in memory during valuations.
    #[serde(default = "defaults::work_memory_mib")]
    pub work_memory_mib: u64,
    /// Rounds that are valued at the same time.
    #[serde(default = "defaults::valuations_max")]
    pub valuations_max: usize,
    /// Parts of 32 of a provider's valuation that are computed again; all of them without a transcript.
    #[serde(default = "defaults::valuation_parts")]
    pub valuation_parts: u32,
    /// Requirements of listings.
    #[serde(default)]
    pub listings: ListingSettings,
    /// The bucket that mirrors the blobs.
    #[serde(default)]
    pub blobs: BucketSettings,
    /// Limits of unfinished uploads.
    #[serde(default)]
    pub uploads: UploadSettings,
    /// Rate limits of requests.
    #[serde(default)]
    pub rate: RateLimits,
    /// TLS on the public listener.
    #[serde(default)]
    pub tls: TlsSettings,
    /// HTTP/2 over TLS.
    #[serde(default)]
    pub http2: Http2Settings,
    /// When snapshots are written, and whether older records are retained.
    #[serde(default)]
    pub journal: JournalSettings,
    /// Export of request spans to a collector.
    #[serde(default)]
    pub otlp: OtlpSettings,
    /// Parameters of an Ethereum node client, for a market on Ethereum.
    #[serde(default)]
    pub ethereum: Settings,
}

mod defaults {
    use std::net::{Ipv4Addr, SocketAddr};

    pub(super) const fn listen() -> SocketAddr {
        SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7700)
    }
    pub(super) const fn connections_max() -> usize {
        4_096
    }
    pub(super) const fn connections_per_address_max() -> usize {
        1_024
    }
    pub(super) const fn header_ms() -> u64 {
        10_000
    }
    pub(super) const fn header_bytes_max() -> usize {
        16 * 1_024
    }
    pub(super) const fn idle_ms() -> u64 {
        60_000
    }
    pub(super) const fn body_mib_max() -> u64 {
        8 * 1_024
    }
    pub(super) const fn page() -> bool {
        true
    }
    pub(super) const fn shutdown_ms() -> u64 {
        30_000
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
    pub(super) const fn valuations_max() -> usize {
        2
    }
    pub(super) const fn valuation_parts() -> u32 {
        super::VALUATION_PARTS_DEFAULT
    }
    pub(super) const fn work_memory_mib() -> u64 {
        1_024
    }
    pub(super) const fn round_mib_max() -> u64 {
        super::ROUND_BYTES_MAX / super::MIB
    }
}

/// Why settings are invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Invalid TOML, an unknown key, or a value of the wrong type.
    #[error("settings: {0} [INVALID_SETTINGS]")]
    Unreadable(String),
    /// The data folder is not set.
    #[error(
        "no data folder is set: use --data DIR, FLORIN_COORDINATOR_DATA, or data in the settings \
         [DATA_FOLDER_NOT_SET]"
    )]
    NoData,
    /// A value is out of bounds.
    #[error("settings: {key} = {value}: use {bounds} [INVALID_SETTINGS]")]
    OutOfBounds {
        /// The key.
        key: &'static str,
        /// Its value.
        value: u64,
        /// The allowed values.
        bounds: &'static str,
    },
    /// A certificate without its key, a key without its certificate, or two certificates.
    #[error("settings: {0} [INVALID_TLS_SETTINGS]")]
    Tls(&'static str),
    /// An invalid bucket, or a setting that requires a bucket.
    #[error(transparent)]
    Bucket(#[from] BucketSettingsError),
    /// An invalid address of a collector.
    #[error("settings: otlp.url = {0:?}: use http://HOST:PORT or https://HOST [INVALID_SETTINGS]")]
    Otlp(String),
}

impl Config {
    /// The default settings for an address and a data folder.
    #[must_use]
    pub fn new(listen: SocketAddr, data: PathBuf) -> Self {
        Self {
            listen,
            data,
            metrics_listen: None,
            page: defaults::page(),
            connections_max: defaults::connections_max(),
            connections_per_address_max: defaults::connections_per_address_max(),
            header_ms: defaults::header_ms(),
            header_bytes_max: defaults::header_bytes_max(),
            idle_ms: defaults::idle_ms(),
            body_mib_max: defaults::body_mib_max(),
            body_ms: defaults::body_ms(),
            bytes_per_second_min: defaults::bytes_per_second_min(),
            stall_ms: defaults::stall_ms(),
            shutdown_ms: defaults::shutdown_ms(),
            trusted_proxies: Vec::new(),
            arbiters: Vec::new(),
            trainers: Vec::new(),
            in_flight_mib: defaults::in_flight_mib(),
            holdout_mib_max: defaults::holdout_mib_max(),
            round_mib_max: defaults::round_mib_max(),
            work_memory_mib: defaults::work_memory_mib(),
            valuations_max: defaults::valuations_max(),
            valuation_parts: defaults::valuation_parts(),
            listings: ListingSettings::default(),
            blobs: BucketSettings::default(),
            uploads: UploadSettings::default(),
            rate: RateLimits::default(),
            tls: TlsSettings::default(),
            http2: Http2Settings::default(),
            journal: JournalSettings::default(),
            otlp: OtlpSettings::default(),
            ethereum: Settings::default(),
        }
    }

    /// Reads settings from TOML text. For each key, a value that `variable` returns for its
    /// environment variable overrides the text.
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
                set(&mut table, key.name, toml_value(key, value));
            }
        }
        if !table.contains_key("data") {
            return Err(ConfigError::NoData);
        }
        let config: Self = table.try_into().map_err(unreadable)?;
        config.check()?;
        Ok(config)
    }

    /// Checks that every setting is within its bounds.
    ///
    /// # Errors
    /// The first setting that is not.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wide = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let (chain, rate, uploads) = (&self.ethereum, &self.rate, &self.uploads);
        let fee_max_wei = u64::try_from(chain.fee_max_wei).unwrap_or(u64::MAX);
        let all = [
            ("connections_max", wide(self.connections_max), 1, 100_000),
            ("connections_per_address_max", wide(self.connections_per_address_max), 1, 100_000),
            ("header_ms", self.header_ms, 100, 60_000),
            ("header_bytes_max", wide(self.header_bytes_max), 1_024, 65_536),
            ("idle_ms", self.idle_ms, 100, 600_000),
            ("body_mib_max", self.body_mib_max, 1, 1_048_576),
            ("body_ms", self.body_ms, 100, 600_000),
            ("bytes_per_second_min", self.bytes_per_second_min, 1_024, 1_000_000_000),
            ("stall_ms", self.stall_ms, 100, 600_000),
            ("shutdown_ms", self.shutdown_ms, 0, 600_000),
            ("trusted_proxies", wide(self.trusted_proxies.len()), 0, LIST_MAX),
            ("arbiters", wide(self.arbiters.len()), 0, LIST_MAX),
            ("trainers", wide(self.trainers.len()), 0, LIST_MAX),
            ("rate.address_per_second", rate.address_per_second, 1, 1_000_000),
            ("rate.address_burst", rate.address_burst, 1, 1_000_000),
            ("rate.wallet_per_second", rate.wallet_per_second, 1, 1_000_000),
            ("rate.wallet_burst", rate.wallet_burst, 1, 1_000_000),
            ("rate.fetch_per_second", rate.fetch_per_second, 1, 1_000_000),
            ("rate.fetch_burst", rate.fetch_burst, 1, 1_000_000),
            ("rate.entries_max", wide(rate.entries_max), 1_024, 16_777_216),
            ("rate.exempt", wide(rate.exempt.len()), 0, LIST_MAX),
            ("tls.names", wide(self.tls.names.len()), 0, LIST_MAX),
            ("tls.handshake_ms", self.tls.handshake_ms, 100, 60_000),
            ("tls.reload_ms", self.tls.reload_ms, 100, 86_400_000),
            ("http2.streams_max", self.http2.streams_max.into(), 1, 1_000),
            ("in_flight_mib", self.in_flight_mib, 1, 1_048_576),
            ("holdout_mib_max", self.holdout_mib_max, 1, 4_096),
            ("round_mib_max", self.round_mib_max, 1, 1_048_576),
            ("journal.snapshot_events", self.journal.snapshot_events, 1, 1_000_000_000),
            ("journal.snapshot_mib", self.journal.snapshot_mib, 1, 1_048_576),
            ("work_memory_mib", self.work_memory_mib, 1, 1_048_576),
            ("valuations_max", wide(self.valuations_max), 1, 64),
            ("valuation_parts", self.valuation_parts.into(), 1, TRANSCRIPT_PARTS.into()),
            ("listings.stake_milli_min", self.listings.stake_milli_min, 1, 1_000_000_000),
            ("listings.fee_milli", self.listings.fee_milli, 0, 1_000_000_000),
            ("listings.probe_ms_min", self.listings.probe_ms_min, 10, 600_000),
            ("listings.probe_every_ms", self.listings.probe_every_ms, 1_000, 604_800_000),
            ("blobs.timeout_ms", self.blobs.timeout_ms, 100, 600_000),
            ("uploads.disk_mib_max", uploads.disk_mib_max, 1, 1_073_741_824),
            ("uploads.task_mib_max", uploads.task_mib_max, 1, 1_073_741_824),
            ("uploads.sender_mib_max", uploads.sender_mib_max, 1, 1_073_741_824),
            ("uploads.free_mib_min", uploads.free_mib_min, 0, 1_073_741_824),
            ("uploads.expire_ms", uploads.expire_ms, 1_000, 2_592_000_000),
            ("ethereum.confirmations", chain.confirmations, 1, CONFIRMATIONS_MAX),
            ("ethereum.gas_max", chain.gas_max, 100_000, 1_000_000_000),
            ("ethereum.fee_max_wei", fee_max_wei, 1, 1_000_000_000_000_000),
            ("ethereum.resubmit_ms", chain.resubmit_ms, 1_000, 86_400_000),
            ("ethereum.write_timeout_ms", chain.write_timeout_ms, 1_000, 86_400_000),
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
        self.blobs.check()?;
        self.otlp.check()?;
        self.tls.check()
    }

    /// Maximum size of any request body, in bytes.
    #[must_use]
    pub const fn body_bytes_max(&self) -> u64 {
        self.body_mib_max.saturating_mul(MIB)
    }

    /// Scratch space for the decoded updates of a round during its valuation. Concurrent valuations
    /// share the memory equally.
    #[must_use]
    pub fn scratch_space(&self) -> ScratchSpace {
        let at_once = u64::try_from(self.valuations_max).unwrap_or(u64::MAX).max(1);
        let memory_max = self.work_memory_mib.saturating_mul(MIB) / at_once;
        ScratchSpace { memory_max, folder: self.data.clone() }
    }

    /// Time limit for a body of `bytes` bytes.
    #[must_use]
    pub fn body_timeout(&self, bytes: u64) -> Duration {
        let by_size = bytes.saturating_mul(1_000).checked_div(self.bytes_per_second_min);
        Duration::from_millis(self.body_ms.saturating_add(by_size.unwrap_or_default()))
    }
}

/// Converts an environment variable's text to the TOML value of its key; a list is separated by
/// commas.
fn toml_value(key: &SettingKey, text: String) -> toml::Value {
    match key.example.as_bytes().first() {
        Some(b'"') => toml::Value::String(text),
        Some(b'[') => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            toml::Value::Array(items.map(|item| toml::Value::String(item.to_owned())).collect())
        }
        Some(b't' | b'f') => match text.parse() {
            Ok(yes) => toml::Value::Boolean(yes),
            Err(_) => toml::Value::String(text),
        },
        _ => text.parse().map_or(toml::Value::String(text), toml::Value::Integer),
    }
}

/// Sets a key, or a key in a table if its name contains a dot.
fn set(table: &mut toml::Table, name: &str, value: toml::Value) {
    let Some((inner, name)) = name.split_once('.') else {
        table.insert(name.to_owned(), value);
        return;
    };
    let empty = || toml::Value::Table(toml::Table::new());
    // A non-table value under the table's name is rejected when the table is deserialized.
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
    fn every_key_is_documented_with_a_valid_example() {
        let text: String =
            KEYS.iter().map(|key| format!("{} = {}\n", key.name, key.example)).collect();
        Config::read(&text, none).unwrap();
        for key in KEYS {
            let without: String = text
                .lines()
                .filter(|line| !line.starts_with(key.name))
                .collect::<Vec<_>>()
                .join("\n");
            let pair = ["tls.certificate", "tls.key", "blobs.url"];
            let needed = key.name == "data" || pair.contains(&key.name);
            assert_eq!(Config::read(&without, none).is_err(), needed, "{}", key.name);
        }
    }

    #[test]
    fn constructor_and_empty_settings_file_have_the_same_defaults() {
        let config = Config::read(SMALLEST, none).unwrap();
        assert_eq!(config, Config::new("127.0.0.1:0".parse().unwrap(), "folder".into()));
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_the_key() {
        let error = Config::read(&format!("{SMALLEST}lisen = 1"), none).unwrap_err();
        assert!(error.to_string().contains("lisen"), "{error}");
    }

    #[test]
    fn a_value_out_of_bounds_is_an_error_with_the_bounds() {
        let error = Config::read(&format!("{SMALLEST}header_ms = 5"), none).unwrap_err();
        assert!(error.to_string().contains("header_ms = 5: use 100 to 60000"), "{error}");
    }

    #[test]
    fn an_environment_variable_overrides_the_settings_file() {
        let variable = |name: &str| match name {
            "FLORIN_COORDINATOR_HEADER_MS" => Some("5000".to_owned()),
            "FLORIN_COORDINATOR_DATA" => Some("7".to_owned()),
            _ => None,
        };
        let config = Config::read(SMALLEST, variable).unwrap();
        assert_eq!((config.header_ms, config.data), (5_000, PathBuf::from("7")));
    }

    #[test]
    fn operations_md_documents_every_key() {
        let page = include_str!("../../../docs/operations.md");
        for SettingKey { name, meaning, bounds, .. } in KEYS {
            let line = format!("| `{name}` | {meaning} | {bounds} |\n");
            assert!(page.contains(&line), "docs/operations.md has no line\n{line}");
        }
        let lines = page.lines().skip_while(|line| !line.contains("<!-- keys -->"));
        let listed = lines.filter(|line| line.starts_with("| `")).count();
        assert!(listed >= KEYS.len(), "{listed} keys are listed");
    }

    #[test]
    fn an_environment_variable_can_be_a_list_or_a_boolean() {
        let variable = |name: &str| match name {
            "FLORIN_COORDINATOR_TRUSTED_PROXIES" => Some("10.0.0.0/8, ::1".to_owned()),
            "FLORIN_COORDINATOR_TLS_SELF_SIGNED" => Some("true".to_owned()),
            _ => None,
        };
        let config = Config::read(SMALLEST, variable).unwrap();
        let proxies = ["10.0.0.0/8", "::1"].map(|text| text.parse::<IpNetwork>().unwrap());
        assert_eq!(
            (config.trusted_proxies.as_slice(), config.tls.self_signed),
            (&proxies[..], true)
        );
        let odd = |_: &str| Some("perhaps".to_owned());
        let error = Config::read(SMALLEST, odd).unwrap_err();
        assert!(error.to_string().contains("INVALID_SETTINGS"), "{error}");
    }

    #[test]
    fn a_list_has_a_maximum_length_and_a_certificate_needs_a_key() {
        let list = vec!["\"10.0.0.1\""; 65].join(", ");
        let error = Config::read(&format!("{SMALLEST}trusted_proxies = [{list}]"), none);
        assert!(error.unwrap_err().to_string().contains("trusted_proxies = 65: use a list"));
        for wrong in [
            "certificate = \"c\"",
            "key = \"k\"",
            "certificate = \"c\"\nkey = \"k\"\nself_signed = true",
        ] {
            let error = Config::read(&format!("{SMALLEST}[tls]\n{wrong}\n"), none).unwrap_err();
            assert!(error.to_string().contains("INVALID_TLS_SETTINGS"), "{wrong}: {error}");
        }
        let both = format!("{SMALLEST}[tls]\ncertificate = \"c\"\nkey = \"k\"\n");
        assert!(Config::read(&both, none).unwrap().tls.is_enabled());
    }

    #[test]
    fn ethereum_settings_are_a_separate_table() {
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
