//! What each key of the settings means, what it may be, and a value that works.

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
        bounds: "an IP address and a port, default 127.0.0.1:7700",
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
        meaning: "connections at once; the process must be allowed to open 512 files more than \
                  this. When all are taken, the one that has waited longest for a request gives way",
        bounds: "1 to 100000, default 4096",
        example: "4096",
        variable: "FLORIN_COORDINATOR_CONNECTIONS_MAX",
    },
    Key {
        name: "connections_per_address_max",
        meaning: "connections at once from one IPv4 address or one IPv6 /64; trusted proxies have \
                  no such limit",
        bounds: "1 to 100000, default 1024",
        example: "1024",
        variable: "FLORIN_COORDINATOR_CONNECTIONS_PER_ADDRESS_MAX",
    },
    Key {
        name: "header_ms",
        meaning: "milliseconds a client has for a request's head, and for the first one after it \
                  connected",
        bounds: "100 to 60000, default 10000",
        example: "10000",
        variable: "FLORIN_COORDINATOR_HEADER_MS",
    },
    Key {
        name: "header_bytes_max",
        meaning: "largest head of a request, in bytes",
        bounds: "1024 to 65536, default 16384",
        example: "16384",
        variable: "FLORIN_COORDINATOR_HEADER_BYTES_MAX",
    },
    Key {
        name: "idle_ms",
        meaning: "milliseconds that a connection is kept between two requests",
        bounds: "100 to 600000, default 60000",
        example: "60000",
        variable: "FLORIN_COORDINATOR_IDLE_MS",
    },
    Key {
        name: "body_mib_max",
        meaning: "largest body of any request, in MiB; most routes take far less",
        bounds: "1 to 1048576, default 8192",
        example: "8192",
        variable: "FLORIN_COORDINATOR_BODY_MIB_MAX",
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
        name: "shutdown_ms",
        meaning: "milliseconds that requests in flight have to end after the coordinator was \
                  asked to stop",
        bounds: "0 to 600000, default 30000",
        example: "30000",
        variable: "FLORIN_COORDINATOR_SHUTDOWN_MS",
    },
    Key {
        name: "trusted_proxies",
        meaning: "networks of proxies whose X-Forwarded-For is believed; from everybody else it \
                  is not read",
        bounds: "a list of addresses and networks such as \"10.0.0.0/8\", at most 64, default none",
        example: "[\"192.0.2.1\", \"2001:db8::/64\"]",
        variable: "FLORIN_COORDINATOR_TRUSTED_PROXIES",
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
        meaning: "most MiB that the updates of one round may take together when they are decoded: a task \
                  whose model times its participants takes more is refused",
        bounds: "1 to 1048576, default 8192",
        example: "8192",
        variable: "FLORIN_COORDINATOR_ROUND_MIB_MAX",
    },
    Key {
        name: "work_memory_mib",
        meaning: "MiB of decoded updates that are held in memory, by all rounds that are valued at once; those \
                  of a larger round lie in a file without a name in the data folder",
        bounds: "1 to 1048576, default 1024",
        example: "1024",
        variable: "FLORIN_COORDINATOR_WORK_MEMORY_MIB",
    },
    Key {
        name: "valuations_max",
        meaning: "rounds of different tasks that are valued at once; a long one holds up the others only \
                  when so many are long",
        bounds: "1 to 64, default 2",
        example: "2",
        variable: "FLORIN_COORDINATOR_VALUATIONS_MAX",
    },
    Key {
        name: "blobs.url",
        meaning: "bucket in which every blob is kept besides the data folder, before its receipt is given; none \
                  unless set",
        bounds: "s3://BUCKET or s3://BUCKET/PREFIX",
        example: "\"s3://florin/market\"",
        variable: "FLORIN_COORDINATOR_BLOBS_URL",
    },
    Key {
        name: "blobs.endpoint",
        meaning: "service that has the bucket, where that is not Amazon's: anything that speaks S3",
        bounds: "https://HOST or http://HOST:PORT, with blobs.url",
        example: "\"http://127.0.0.1:9000\"",
        variable: "FLORIN_COORDINATOR_BLOBS_ENDPOINT",
    },
    Key {
        name: "blobs.region",
        meaning: "region of the bucket",
        bounds: "a name, with blobs.url, default us-east-1",
        example: "\"eu-central-1\"",
        variable: "FLORIN_COORDINATOR_BLOBS_REGION",
    },
    Key {
        name: "blobs.patience_ms",
        meaning: "milliseconds that one request to the bucket may take, further tries included; whoever waits for \
                  it hears then to try again",
        bounds: "100 to 600000, default 20000",
        example: "20000",
        variable: "FLORIN_COORDINATOR_BLOBS_PATIENCE_MS",
    },
    Key {
        name: "uploads.disk_mib_max",
        meaning: "most MiB that unfinished uploads may hold together: one that is being sent \
                  counts in full from its beginning, one whose sender is away with what came",
        bounds: "1 to 1073741824, default 65536",
        example: "65536",
        variable: "FLORIN_COORDINATOR_UPLOADS_DISK_MIB_MAX",
    },
    Key {
        name: "uploads.task_mib_max",
        meaning: "most MiB that those of one task may hold, so that no task takes the others' \
                  room",
        bounds: "1 to 1073741824, default 16384",
        example: "16384",
        variable: "FLORIN_COORDINATOR_UPLOADS_TASK_MIB_MAX",
    },
    Key {
        name: "uploads.sender_mib_max",
        meaning: "most MiB that those of one sender may hold",
        bounds: "1 to 1073741824, default 8192",
        example: "8192",
        variable: "FLORIN_COORDINATOR_UPLOADS_SENDER_MIB_MAX",
    },
    Key {
        name: "uploads.free_mib_min",
        meaning: "MiB that uploads leave free on the disk, for journal and ledger",
        bounds: "0 to 1073741824, default 512",
        example: "512",
        variable: "FLORIN_COORDINATOR_UPLOADS_FREE_MIB_MIN",
    },
    Key {
        name: "uploads.partial_ms_max",
        meaning: "milliseconds that an unfinished upload is kept whose sender does not come \
                  back; the end of its round ends it sooner",
        bounds: "1000 to 2592000000, default 86400000",
        example: "86400000",
        variable: "FLORIN_COORDINATOR_UPLOADS_PARTIAL_MS_MAX",
    },
    Key {
        name: "rate.address_per_second",
        meaning: "requests a second that one IPv4 address or IPv6 /64 may make for long",
        bounds: "1 to 1000000, default 500",
        example: "500",
        variable: "FLORIN_COORDINATOR_RATE_ADDRESS_PER_SECOND",
    },
    Key {
        name: "rate.address_burst",
        meaning: "requests that it may make at once after a pause",
        bounds: "1 to 1000000, default 5000",
        example: "5000",
        variable: "FLORIN_COORDINATOR_RATE_ADDRESS_BURST",
    },
    Key {
        name: "rate.wallet_per_second",
        meaning: "signed messages a second that one wallet may send for long",
        bounds: "1 to 1000000, default 50",
        example: "50",
        variable: "FLORIN_COORDINATOR_RATE_WALLET_PER_SECOND",
    },
    Key {
        name: "rate.wallet_burst",
        meaning: "signed messages that it may send at once after a pause",
        bounds: "1 to 1000000, default 500",
        example: "500",
        variable: "FLORIN_COORDINATOR_RATE_WALLET_BURST",
    },
    Key {
        name: "rate.fetch_per_second",
        meaning: "blobs a second that one provider may fetch for its work orders for long; \
                  they do not count among its messages",
        bounds: "1 to 1000000, default 500",
        example: "500",
        variable: "FLORIN_COORDINATOR_RATE_FETCH_PER_SECOND",
    },
    Key {
        name: "rate.fetch_burst",
        meaning: "blobs that it may fetch at once after a pause; an order has one for each \
                  update",
        bounds: "1 to 1000000, default 5000",
        example: "5000",
        variable: "FLORIN_COORDINATOR_RATE_FETCH_BURST",
    },
    Key {
        name: "rate.entries_max",
        meaning: "addresses, and wallets, that are remembered at once; who owes least is \
                  forgotten first",
        bounds: "1024 to 16777216, default 65536",
        example: "65536",
        variable: "FLORIN_COORDINATOR_RATE_ENTRIES_MAX",
    },
    Key {
        name: "rate.exempt",
        meaning: "networks that have no limit for addresses; what comes from there with \
                  X-Forwarded-For has",
        bounds: "a list of addresses and networks, at most 64, default this machine",
        example: "[\"127.0.0.0/8\", \"::1\"]",
        variable: "FLORIN_COORDINATOR_RATE_EXEMPT",
    },
    Key {
        name: "tls.certificate",
        meaning: "file with the certificate and its chain, in PEM; with it, the port speaks TLS \
                  only",
        bounds: "a file, with tls.key",
        example: "\"market/certificate.pem\"",
        variable: "FLORIN_COORDINATOR_TLS_CERTIFICATE",
    },
    Key {
        name: "tls.key",
        meaning: "file with the certificate's private key, in PEM",
        bounds: "a file, with tls.certificate",
        example: "\"market/key.pem\"",
        variable: "FLORIN_COORDINATOR_TLS_KEY",
    },
    Key {
        name: "tls.self_signed",
        meaning: "make a certificate in the data folder, for trials, and use it",
        bounds: "true or false, default false; not with tls.certificate",
        example: "false",
        variable: "FLORIN_COORDINATOR_TLS_SELF_SIGNED",
    },
    Key {
        name: "tls.names",
        meaning: "names and addresses that the certificate for trials is for, besides this \
                  machine's",
        bounds: "a list of host names and addresses, at most 64, default none",
        example: "[\"market.example\"]",
        variable: "FLORIN_COORDINATOR_TLS_NAMES",
    },
    Key {
        name: "tls.handshake_ms",
        meaning: "milliseconds a client has for the TLS handshake",
        bounds: "100 to 60000, default 10000",
        example: "10000",
        variable: "FLORIN_COORDINATOR_TLS_HANDSHAKE_MS",
    },
    Key {
        name: "tls.look_ms",
        meaning: "milliseconds until certificate and key are looked at again; if they have changed, whoever connects is shown the new ones",
        bounds: "100 to 86400000, default 60000",
        example: "60000",
        variable: "FLORIN_COORDINATOR_TLS_LOOK_MS",
    },
    Key {
        name: "http2.enabled",
        meaning: "offer HTTP/2 over TLS; without it, and without TLS, there is HTTP/1.1 only",
        bounds: "true or false, default false",
        example: "false",
        variable: "FLORIN_COORDINATOR_HTTP2_ENABLED",
    },
    Key {
        name: "http2.streams_max",
        meaning: "requests at once on one connection",
        bounds: "1 to 1000, default 64",
        example: "64",
        variable: "FLORIN_COORDINATOR_HTTP2_STREAMS_MAX",
    },
    Key {
        name: "otlp.url",
        meaning: "OpenTelemetry collector that gets a span for each request, over HTTP (protobuf); \
                  none unless set",
        bounds: "http://HOST:PORT or https://HOST",
        example: "\"http://127.0.0.1:4318\"",
        variable: "FLORIN_COORDINATOR_OTLP_URL",
    },
    Key {
        name: "journal.snapshot_events",
        meaning: "events after which a snapshot of the state is written, so that a start need not \
                  read the whole journal",
        bounds: "1 to 1000000000, default 100000",
        example: "100000",
        variable: "FLORIN_COORDINATOR_JOURNAL_SNAPSHOT_EVENTS",
    },
    Key {
        name: "journal.snapshot_mib",
        meaning: "MiB of journal after which one is written, if that comes first",
        bounds: "1 to 1048576, default 64",
        example: "64",
        variable: "FLORIN_COORDINATOR_JOURNAL_SNAPSHOT_MIB",
    },
    Key {
        name: "journal.keep",
        meaning: "keep the journal before the snapshots: the proof of what everybody signed, and when; \
                  without it, what the last two snapshots stand for is removed",
        bounds: "true or false, default true",
        example: "true",
        variable: "FLORIN_COORDINATOR_JOURNAL_KEEP",
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
