//! The settings' keys: meaning, bounds, an example, and the environment variable of each.

/// A key of the settings.
#[derive(Clone, Copy, Debug)]
pub struct SettingKey {
    /// The key as written in the settings file, with its table: `table.key`.
    pub name: &'static str,
    /// Description.
    pub meaning: &'static str,
    /// The allowed values and the default.
    pub bounds: &'static str,
    /// A valid value, in TOML.
    pub example: &'static str,
    /// The environment variable that overrides the file.
    pub variable: &'static str,
}

/// Every key of the settings.
pub const KEYS: &[SettingKey] = &[
    SettingKey {
        name: "listen",
        meaning: "address and port to listen on; port 0 selects a free port",
        bounds: "an IP address and a port, default 127.0.0.1:7700",
        example: "\"127.0.0.1:7700\"",
        variable: "FLORIN_COORDINATOR_LISTEN",
    },
    SettingKey {
        name: "data",
        meaning: "folder for the journal and the blobs; only one process may use it",
        bounds: "a writable folder",
        example: "\"market/coordinator\"",
        variable: "FLORIN_COORDINATOR_DATA",
    },
    SettingKey {
        name: "metrics_listen",
        meaning: "address and port of /metrics, /healthz and /readyz, for the operator and not for \
                  the internet; disabled unless set",
        bounds: "an IP address and a port",
        example: "\"127.0.0.1:7701\"",
        variable: "FLORIN_COORDINATOR_METRICS_LISTEN",
    },
    SettingKey {
        name: "page",
        meaning: "whether `/` is the page for people: tasks, rounds, money and compute, from the \
                  public routes alone",
        bounds: "true or false, default true",
        example: "true",
        variable: "FLORIN_COORDINATOR_PAGE",
    },
    SettingKey {
        name: "connections_max",
        meaning: "maximum number of connections; the process must be allowed to open 512 more \
                  files than this. When the maximum is reached, the connection that has waited \
                  longest for a request is closed",
        bounds: "1 to 100000, default 4096",
        example: "4096",
        variable: "FLORIN_COORDINATOR_CONNECTIONS_MAX",
    },
    SettingKey {
        name: "connections_per_address_max",
        meaning: "maximum number of connections from one IPv4 address or one IPv6 /64; does not \
                  apply to trusted proxies",
        bounds: "1 to 100000, default 1024",
        example: "1024",
        variable: "FLORIN_COORDINATOR_CONNECTIONS_PER_ADDRESS_MAX",
    },
    SettingKey {
        name: "header_ms",
        meaning: "milliseconds a client has to send the headers of a request, also for the first \
                  request after it connects",
        bounds: "100 to 60000, default 10000",
        example: "10000",
        variable: "FLORIN_COORDINATOR_HEADER_MS",
    },
    SettingKey {
        name: "header_bytes_max",
        meaning: "maximum size of the request headers, in bytes",
        bounds: "1024 to 65536, default 16384",
        example: "16384",
        variable: "FLORIN_COORDINATOR_HEADER_BYTES_MAX",
    },
    SettingKey {
        name: "idle_ms",
        meaning: "milliseconds that an idle connection stays open between two requests",
        bounds: "100 to 600000, default 60000",
        example: "60000",
        variable: "FLORIN_COORDINATOR_IDLE_MS",
    },
    SettingKey {
        name: "body_mib_max",
        meaning: "maximum size of any request body, in MiB; most routes have a much lower limit",
        bounds: "1 to 1048576, default 8192",
        example: "8192",
        variable: "FLORIN_COORDINATOR_BODY_MIB_MAX",
    },
    SettingKey {
        name: "body_ms",
        meaning: "milliseconds a client has to send a request body, in addition to the time for \
                  its size",
        bounds: "100 to 600000, default 30000",
        example: "30000",
        variable: "FLORIN_COORDINATOR_BODY_MS",
    },
    SettingKey {
        name: "bytes_per_second_min",
        meaning: "minimum upload rate: a body of n bytes has n / this many seconds in addition to \
                  body_ms, and a client that sends less than this over body_ms is disconnected",
        bounds: "1024 to 1000000000, default 65536",
        example: "65536",
        variable: "FLORIN_COORDINATOR_BYTES_PER_SECOND_MIN",
    },
    SettingKey {
        name: "stall_ms",
        meaning: "milliseconds after which a client that reads none of its response is \
                  disconnected",
        bounds: "100 to 600000, default 30000",
        example: "30000",
        variable: "FLORIN_COORDINATOR_STALL_MS",
    },
    SettingKey {
        name: "shutdown_ms",
        meaning: "milliseconds that in-flight requests have to finish during a graceful shutdown",
        bounds: "0 to 600000, default 30000",
        example: "30000",
        variable: "FLORIN_COORDINATOR_SHUTDOWN_MS",
    },
    SettingKey {
        name: "trusted_proxies",
        meaning: "networks of proxies whose X-Forwarded-For header is trusted; it is ignored from \
                  all other addresses",
        bounds: "a list of addresses and networks such as \"10.0.0.0/8\", at most 64, default none",
        example: "[\"192.0.2.1\", \"2001:db8::/64\"]",
        variable: "FLORIN_COORDINATOR_TRUSTED_PROXIES",
    },
    SettingKey {
        name: "arbiters",
        meaning: "accounts that may arbitrate a task of this coordinator: each can slash the bond \
                  that the coordinator deposits for the task's pay; a task with another arbiter is \
                  refused, unless its arbiter is the coordinator; an order for compute needs one of them \
                  as its referee",
        bounds: "a list of at most 64 addresses, default none",
        example: "[\"0x1111111111111111111111111111111111111111\"]",
        variable: "FLORIN_COORDINATOR_ARBITERS",
    },
    SettingKey {
        name: "trainers",
        meaning: "digests of programs that may be the model of a task: this machine runs them in a \
                  sandbox; a task with another program is refused",
        bounds: "a list of at most 64 digests, default none",
        example: "[\"1111111111111111111111111111111111111111111111111111111111111111\"]",
        variable: "FLORIN_COORDINATOR_TRAINERS",
    },
    SettingKey {
        name: "in_flight_mib",
        meaning: "MiB of updates that are checked at the same time, and as many again for models \
                  and holdouts, and for jobs of orders; further uploads wait",
        bounds: "1 to 1048576, default 256",
        example: "256",
        variable: "FLORIN_COORDINATOR_IN_FLIGHT_MIB",
    },
    SettingKey {
        name: "holdout_mib_max",
        meaning: "maximum size of a holdout that a buyer uploads, in MiB",
        bounds: "1 to 4096, default 1024",
        example: "1024",
        variable: "FLORIN_COORDINATOR_HOLDOUT_MIB_MAX",
    },
    SettingKey {
        name: "round_mib_max",
        meaning: "maximum MiB of all decoded updates of one round: a task whose model size times \
                  its number of participants is larger is rejected",
        bounds: "1 to 1048576, default 8192",
        example: "8192",
        variable: "FLORIN_COORDINATOR_ROUND_MIB_MAX",
    },
    SettingKey {
        name: "work_memory_mib",
        meaning: "MiB of decoded updates in memory, shared by all rounds that are valued at the \
                  same time; the updates of a larger round are in an unnamed file in the data \
                  folder",
        bounds: "1 to 1048576, default 1024",
        example: "1024",
        variable: "FLORIN_COORDINATOR_WORK_MEMORY_MIB",
    },
    SettingKey {
        name: "valuations_max",
        meaning: "rounds of different tasks that are valued at the same time; long valuations \
                  delay other tasks only when this many run",
        bounds: "1 to 64, default 2",
        example: "2",
        variable: "FLORIN_COORDINATOR_VALUATIONS_MAX",
    },
    SettingKey {
        name: "valuation_parts",
        meaning: "parts of 32 that are drawn from each evaluation of a provider's valuation and computed \
                  again; 32 values each round in full, as without a provider",
        bounds: "1 to 32, default 2",
        example: "2",
        variable: "FLORIN_COORDINATOR_VALUATION_PARTS",
    },
    SettingKey {
        name: "listings.stake_milli_min",
        meaning: "smallest stake of a listing for each of its devices, in thousandths of a florin",
        bounds: "1 to 1000000000, default 1000",
        example: "1000",
        variable: "FLORIN_COORDINATOR_LISTINGS_STAKE_MILLI_MIN",
    },
    SettingKey {
        name: "listings.fee_milli",
        meaning: "what a provider pays the coordinator for each probe of its devices, in thousandths of a \
                  florin",
        bounds: "0 to 1000000000, default 10",
        example: "10",
        variable: "FLORIN_COORDINATOR_LISTINGS_FEE_MILLI",
    },
    SettingKey {
        name: "listings.probe_ms_min",
        meaning: "least duration of a probe by its card, in milliseconds: a card that is better than its \
                  devices by less than a second for each probe is not found",
        bounds: "10 to 600000, default 15000",
        example: "15000",
        variable: "FLORIN_COORDINATOR_LISTINGS_PROBE_MS_MIN",
    },
    SettingKey {
        name: "listings.probe_every_ms",
        meaning: "mean time between two probes of all idle listings at once, in milliseconds",
        bounds: "1000 to 604800000, default 3600000",
        example: "3600000",
        variable: "FLORIN_COORDINATOR_LISTINGS_PROBE_EVERY_MS",
    },
    SettingKey {
        name: "blobs.url",
        meaning: "bucket that stores a copy of every blob, written before the receipt is issued; \
                  none unless set",
        bounds: "s3://BUCKET or s3://BUCKET/PREFIX",
        example: "\"s3://florin/market\"",
        variable: "FLORIN_COORDINATOR_BLOBS_URL",
    },
    SettingKey {
        name: "blobs.endpoint",
        meaning: "S3-compatible service that has the bucket, if it is not Amazon's",
        bounds: "https://HOST or http://HOST:PORT, with blobs.url",
        example: "\"http://127.0.0.1:9000\"",
        variable: "FLORIN_COORDINATOR_BLOBS_ENDPOINT",
    },
    SettingKey {
        name: "blobs.region",
        meaning: "region of the bucket",
        bounds: "a name, with blobs.url, default us-east-1",
        example: "\"eu-central-1\"",
        variable: "FLORIN_COORDINATOR_BLOBS_REGION",
    },
    SettingKey {
        name: "blobs.timeout_ms",
        meaning: "timeout of one request to the bucket in milliseconds, retries included; \
                  afterwards the waiting client is asked to try again",
        bounds: "100 to 600000, default 20000",
        example: "20000",
        variable: "FLORIN_COORDINATOR_BLOBS_TIMEOUT_MS",
    },
    SettingKey {
        name: "uploads.disk_mib_max",
        meaning: "maximum MiB of all unfinished uploads: an active upload counts with its full \
                  size, an interrupted one with the bytes received",
        bounds: "1 to 1073741824, default 65536",
        example: "65536",
        variable: "FLORIN_COORDINATOR_UPLOADS_DISK_MIB_MAX",
    },
    SettingKey {
        name: "uploads.task_mib_max",
        meaning: "maximum MiB of the unfinished uploads of one task, so that no task takes the \
                  space of the others",
        bounds: "1 to 1073741824, default 16384",
        example: "16384",
        variable: "FLORIN_COORDINATOR_UPLOADS_TASK_MIB_MAX",
    },
    SettingKey {
        name: "uploads.sender_mib_max",
        meaning: "maximum MiB of the unfinished uploads of one sender",
        bounds: "1 to 1073741824, default 8192",
        example: "8192",
        variable: "FLORIN_COORDINATOR_UPLOADS_SENDER_MIB_MAX",
    },
    SettingKey {
        name: "uploads.free_mib_min",
        meaning: "MiB of disk space that uploads leave free for the journal and the ledger",
        bounds: "0 to 1073741824, default 512",
        example: "512",
        variable: "FLORIN_COORDINATOR_UPLOADS_FREE_MIB_MIN",
    },
    SettingKey {
        name: "uploads.expire_ms",
        meaning: "milliseconds after which an interrupted upload is removed if its sender does not \
                  resume it; it is removed earlier if its round ends",
        bounds: "1000 to 2592000000, default 86400000",
        example: "86400000",
        variable: "FLORIN_COORDINATOR_UPLOADS_EXPIRE_MS",
    },
    SettingKey {
        name: "rate.address_per_second",
        meaning: "sustained requests per second from one IPv4 address or IPv6 /64",
        bounds: "1 to 1000000, default 500",
        example: "500",
        variable: "FLORIN_COORDINATOR_RATE_ADDRESS_PER_SECOND",
    },
    SettingKey {
        name: "rate.address_burst",
        meaning: "requests from it in one burst after a pause",
        bounds: "1 to 1000000, default 5000",
        example: "5000",
        variable: "FLORIN_COORDINATOR_RATE_ADDRESS_BURST",
    },
    SettingKey {
        name: "rate.wallet_per_second",
        meaning: "sustained signed messages per second from one wallet",
        bounds: "1 to 1000000, default 50",
        example: "50",
        variable: "FLORIN_COORDINATOR_RATE_WALLET_PER_SECOND",
    },
    SettingKey {
        name: "rate.wallet_burst",
        meaning: "signed messages from it in one burst after a pause",
        bounds: "1 to 1000000, default 500",
        example: "500",
        variable: "FLORIN_COORDINATOR_RATE_WALLET_BURST",
    },
    SettingKey {
        name: "rate.fetch_per_second",
        meaning: "sustained blobs per second that one provider may download for its work orders; \
                  they do not count as messages",
        bounds: "1 to 1000000, default 500",
        example: "500",
        variable: "FLORIN_COORDINATOR_RATE_FETCH_PER_SECOND",
    },
    SettingKey {
        name: "rate.fetch_burst",
        meaning: "blobs that it may download in one burst after a pause; a work order has one for \
                  each update",
        bounds: "1 to 1000000, default 5000",
        example: "5000",
        variable: "FLORIN_COORDINATOR_RATE_FETCH_BURST",
    },
    SettingKey {
        name: "rate.entries_max",
        meaning: "addresses, and as many wallets, whose rate is tracked; the entry that is closest \
                  to its full burst is evicted first",
        bounds: "1024 to 16777216, default 65536",
        example: "65536",
        variable: "FLORIN_COORDINATOR_RATE_ENTRIES_MAX",
    },
    SettingKey {
        name: "rate.exempt",
        meaning: "networks without a rate limit for addresses; requests from there with \
                  X-Forwarded-For are limited",
        bounds: "a list of addresses and networks, at most 64, default this machine",
        example: "[\"127.0.0.0/8\", \"::1\"]",
        variable: "FLORIN_COORDINATOR_RATE_EXEMPT",
    },
    SettingKey {
        name: "tls.certificate",
        meaning: "PEM file with the certificate and its chain; if set, the port serves TLS only",
        bounds: "a file, with tls.key",
        example: "\"market/certificate.pem\"",
        variable: "FLORIN_COORDINATOR_TLS_CERTIFICATE",
    },
    SettingKey {
        name: "tls.key",
        meaning: "PEM file with the certificate's private key",
        bounds: "a file, with tls.certificate",
        example: "\"market/key.pem\"",
        variable: "FLORIN_COORDINATOR_TLS_KEY",
    },
    SettingKey {
        name: "tls.self_signed",
        meaning: "create a self-signed certificate in the data folder, for trials, and use it",
        bounds: "true or false, default false; not with tls.certificate",
        example: "false",
        variable: "FLORIN_COORDINATOR_TLS_SELF_SIGNED",
    },
    SettingKey {
        name: "tls.names",
        meaning: "host names and addresses of the self-signed certificate, in addition to this \
                  machine's",
        bounds: "a list of host names and addresses, at most 64, default none",
        example: "[\"market.example\"]",
        variable: "FLORIN_COORDINATOR_TLS_NAMES",
    },
    SettingKey {
        name: "tls.handshake_ms",
        meaning: "milliseconds a client has for the TLS handshake",
        bounds: "100 to 60000, default 10000",
        example: "10000",
        variable: "FLORIN_COORDINATOR_TLS_HANDSHAKE_MS",
    },
    SettingKey {
        name: "tls.reload_ms",
        meaning: "milliseconds between two checks of the certificate and key files; if they have \
                  changed, new connections use them",
        bounds: "100 to 86400000, default 60000",
        example: "60000",
        variable: "FLORIN_COORDINATOR_TLS_RELOAD_MS",
    },
    SettingKey {
        name: "http2.enabled",
        meaning: "offer HTTP/2 over TLS; otherwise, and without TLS, only HTTP/1.1",
        bounds: "true or false, default false",
        example: "false",
        variable: "FLORIN_COORDINATOR_HTTP2_ENABLED",
    },
    SettingKey {
        name: "http2.streams_max",
        meaning: "maximum number of concurrent requests on one connection",
        bounds: "1 to 1000, default 64",
        example: "64",
        variable: "FLORIN_COORDINATOR_HTTP2_STREAMS_MAX",
    },
    SettingKey {
        name: "otlp.url",
        meaning: "OpenTelemetry collector that receives a span for each request, over HTTP \
                  (protobuf); none unless set",
        bounds: "http://HOST:PORT or https://HOST",
        example: "\"http://127.0.0.1:4318\"",
        variable: "FLORIN_COORDINATOR_OTLP_URL",
    },
    SettingKey {
        name: "journal.snapshot_events",
        meaning: "events after which a snapshot of the state is written, so that a start need not \
                  replay the whole journal",
        bounds: "1 to 1000000000, default 100000",
        example: "100000",
        variable: "FLORIN_COORDINATOR_JOURNAL_SNAPSHOT_EVENTS",
    },
    SettingKey {
        name: "journal.snapshot_mib",
        meaning: "MiB of journal after which a snapshot is written, if that is reached first",
        bounds: "1 to 1048576, default 64",
        example: "64",
        variable: "FLORIN_COORDINATOR_JOURNAL_SNAPSHOT_MIB",
    },
    SettingKey {
        name: "journal.retain",
        meaning: "retain the journal from before the snapshots: the proof of every signed message \
                  and its time; otherwise the records before the older of the last two snapshots \
                  are removed",
        bounds: "true or false, default true",
        example: "true",
        variable: "FLORIN_COORDINATOR_JOURNAL_RETAIN",
    },
    SettingKey {
        name: "ethereum.confirmations",
        meaning: "confirmations that a block needs, the block itself included",
        bounds: "1 to 64, default 1",
        example: "3",
        variable: "FLORIN_COORDINATOR_ETHEREUM_CONFIRMATIONS",
    },
    SettingKey {
        name: "ethereum.gas_max",
        meaning: "maximum gas of one transaction",
        bounds: "100000 to 1000000000, default 3000000",
        example: "3000000",
        variable: "FLORIN_COORDINATOR_ETHEREUM_GAS_MAX",
    },
    SettingKey {
        name: "ethereum.fee_max_wei",
        meaning: "maximum fee per unit of gas, in wei",
        bounds: "1 to 1000000000000000, default 100000000000",
        example: "100000000000",
        variable: "FLORIN_COORDINATOR_ETHEREUM_FEE_MAX_WEI",
    },
    SettingKey {
        name: "ethereum.resubmit_ms",
        meaning: "milliseconds after which a transaction that is in no block is resubmitted with a \
                  higher fee",
        bounds: "1000 to 86400000, default 45000",
        example: "45000",
        variable: "FLORIN_COORDINATOR_ETHEREUM_RESUBMIT_MS",
    },
    SettingKey {
        name: "ethereum.write_timeout_ms",
        meaning: "milliseconds after which a write stops waiting; its transaction stays in the \
                  outbox",
        bounds: "1000 to 86400000, default 300000",
        example: "300000",
        variable: "FLORIN_COORDINATOR_ETHEREUM_WRITE_TIMEOUT_MS",
    },
    SettingKey {
        name: "ethereum.poll_ms_max",
        meaning: "maximum interval between two polls of the chain, in milliseconds",
        bounds: "10 to 60000, default 1000",
        example: "1000",
        variable: "FLORIN_COORDINATOR_ETHEREUM_POLL_MS_MAX",
    },
    SettingKey {
        name: "ethereum.log_blocks_max",
        meaning: "maximum number of blocks in one log query; halved if the node rejects it",
        bounds: "1 to 1000000, default 10000",
        example: "10000",
        variable: "FLORIN_COORDINATOR_ETHEREUM_LOG_BLOCKS_MAX",
    },
];
