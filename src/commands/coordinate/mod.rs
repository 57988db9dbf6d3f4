//! `florin coordinate`: runs a market's rounds, and its ledger unless the ledger is on Ethereum.

pub(in crate::commands) mod check;
mod embedded;
mod systemd;

use std::fs::File;
use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use florin_coordinator::{
    Clock, Config, HostParts, LedgerEndpoint, SlewedClock, Tls, Valuer, WorkValuer,
};
use florin_ledger::Ledger;
use florin_participant::Wallet;
use florin_protocol::{LedgerInfo, MarketId, WalletSigner};
use tokio::net::TcpListener;

use crate::cli::{Coordinate, JsonArg, LedgerKind};
use crate::commands::wallet;
use crate::compose;
use crate::ethereum;
use crate::failure::{Exit, Failure};
use crate::log::{self, LogOptions};
use crate::open_files;
use crate::otlp::OtlpExport;
use crate::show;
use crate::small_file::SmallFile;
use crate::trace::TraceSession;
use systemd::Systemd;

/// The file of the settings.
const SETTINGS: SmallFile =
    SmallFile { kind: "a settings file", code: "INVALID_SETTINGS", bytes_max: 1 << 20 };
/// How long the shutdown finally waits for a blocked disk or file operation.
const LAST_WAITS: Duration = Duration::from_secs(5);

pub(super) fn run(
    arguments: &Coordinate,
    log: LogOptions,
    trace: Option<&TraceSession>,
) -> anyhow::Result<Exit> {
    if arguments.check {
        log::start(log, None);
        let account = wallet::keystore_address(&arguments.wallet.wallet)?;
        let config = settings(arguments)?;
        let bucket = check::open_bucket(&config)?;
        let json = JsonArg { json: arguments.json };
        return check::run(&config.data, account, bucket.as_ref(), json);
    }
    let config = settings(arguments)?;
    let export = config.otlp.url.as_deref().map(OtlpExport::new).transpose()?;
    let spans = export.as_ref().map(OtlpExport::layer);
    log::start(log, spans.into_iter().chain(trace.map(TraceSession::layer)));
    let done = coordinate(arguments, &config);
    if let Some(export) = export {
        export.shutdown();
    }
    done
}

fn coordinate(arguments: &Coordinate, config: &Config) -> anyhow::Result<Exit> {
    open_files::raise_limit(config.connections_max)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(florin_coordinator::BLOCKING_THREADS_MAX)
        .build()
        .context("cannot start the async runtime")?;
    let done: anyhow::Result<Exit> = runtime.block_on(async {
        // Bind the port first, so that nothing is written to disk for a coordinator that cannot
        // listen.
        let listener = listen(config.listen)?;
        let wallet = Arc::new(wallet::open(&arguments.wallet)?);
        let (parts, _only_one) = parts(arguments, config, &wallet)?;
        let (address, place) = (listener.local_addr()?, parts.ledger_endpoint.info());
        let id = parts.ledger.market();
        let stop = stop_signal()?;
        let market = florin_coordinator::open(config, listener, parts).await?;
        // The market is announced only now, because opening it can fail on a damaged journal or
        // certificate. From here on requests are answered.
        announce(arguments, config, &wallet, (id, &place), address, market.tls())?;
        let (systemd, host) = (Systemd::from_env(), market.host().clone());
        systemd.ready(address);
        let stop = async {
            stop.await;
            systemd.stopping();
        };
        tokio::select! {
            ended = market.serve(stop) => ended?,
            () = systemd.run_watchdog(&host) => {}
        }
        anstream::println!("Stopped. A restart resumes where it stopped.");
        Ok(Exit::Done)
    });
    runtime.shutdown_timeout(LAST_WAITS);
    done
}

/// Flags override variables, and variables override the file.
fn settings(arguments: &Coordinate) -> anyhow::Result<Config> {
    let flag = |file: &Option<PathBuf>| -> anyhow::Result<Option<String>> {
        let text = file.as_ref().map(|file| file.to_str().context("a file name is not UTF-8"));
        Ok(text.transpose()?.map(str::to_owned))
    };
    let (certificate, key) = (flag(&arguments.tls_certificate)?, flag(&arguments.tls_key)?);
    let data = flag(&arguments.data)?;
    let self_signed = arguments.tls_self_signed.then(|| "true".to_owned());
    let mut config = read_settings(arguments.settings.as_deref(), |variable| match variable {
        "FLORIN_COORDINATOR_LISTEN" => arguments.listen.map(|address| address.to_string()),
        "FLORIN_COORDINATOR_DATA" => data.clone(),
        "FLORIN_COORDINATOR_TLS_CERTIFICATE" => certificate.clone(),
        "FLORIN_COORDINATOR_TLS_KEY" => key.clone(),
        "FLORIN_COORDINATOR_TLS_SELF_SIGNED" => self_signed.clone(),
        _ => None,
    })?;
    config.trainers.extend(&arguments.trainers.accept_trainer);
    config.ethereum = arguments.node.spending.apply_to(config.ethereum);
    Ok(config)
}

/// Reads the settings from the file, if there is one, and from variables; `flag` overrides both.
pub(super) fn read_settings(
    file: Option<&Path>,
    flag: impl Fn(&str) -> Option<String>,
) -> anyhow::Result<Config> {
    let text = match file {
        None => String::new(),
        Some(file) => SETTINGS.read(file)?,
    };
    let variable = |name: &str| flag(name).or_else(|| std::env::var(name).ok());
    Ok(Config::read(&text, variable)?)
}

/// Binds a port.
///
/// # Errors
/// `PORT_IN_USE`, and those of any socket.
pub(super) fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    florin_coordinator::listen(address).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            let message = format!(
                "{address} is in use by another process: stop it, or choose another port with \
                 --listen"
            );
            Failure::input("PORT_IN_USE", message).into()
        }
        _ => anyhow::Error::from(error).context(format!("cannot listen on {address}")),
    })
}

/// The coordinator's parts, and the lock that prevents a second coordinator of the same market.
fn parts(
    arguments: &Coordinate,
    config: &Config,
    wallet: &Arc<Wallet>,
) -> anyhow::Result<(HostParts, Option<File>)> {
    let node = wallet.node_signer();
    // One clock for engine and ledger, so that deadlines and challenge windows use the same time.
    let clock: Arc<dyn Clock> = Arc::new(SlewedClock::start());
    let (ledger, place, copier, lock): (Arc<dyn Ledger>, LedgerEndpoint, _, _) = match arguments
        .ledger
    {
        LedgerKind::Embedded => {
            let (ledger, place, copier) = embedded::open(arguments, &config.data, wallet, &clock)?;
            (ledger, place, Some(copier), None)
        }
        LedgerKind::Ethereum => {
            let opened = ethereum::coordinate::open(arguments, config.ethereum, wallet)?;
            (opened.ledger, opened.place, None, Some(opened.lock))
        }
    };
    let scratch = config.data.join("trainers");
    // Left by a process that was killed: rows and code of its last runs.
    let _ = std::fs::remove_dir_all(&scratch);
    let secrets = [arguments.wallet.secrets(), vec![config.data.clone()]].concat();
    let mut host = arguments.trainers.sandbox.host(secrets, scratch);
    host.accepted = config.trainers.iter().map(|digest| digest.0).collect();
    compose::check_sandbox(&host)?;
    let mut valuers: Vec<Box<dyn Valuer>> = Vec::new();
    for _ in 0..config.valuations_max {
        let engine = compose::engine_with_trainers(arguments.engine, host.clone())?;
        let valuer = WorkValuer::new(engine, config.scratch_space());
        valuers.push(Box::new(valuer.with_parts(config.valuation_parts)));
    }
    let parts = HostParts {
        ledger_endpoint: place,
        ledger,
        wallet: Arc::<Wallet>::clone(wallet),
        node,
        valuers,
        clock,
        ledger_copier: copier,
    };
    Ok((parts, lock))
}

fn announce(
    arguments: &Coordinate,
    config: &Config,
    wallet: &Wallet,
    (market, place): (MarketId, &LedgerInfo),
    address: SocketAddr,
    tls: Option<&Tls>,
) -> anyhow::Result<()> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut facts = vec![
        ("market", format!("{scheme}://{address}")),
        ("coordinator", wallet.address().to_string()),
        ("node key", wallet.node_signer().key().to_string()),
        ("chain", format!("{}, genesis {}", market.chain, market.genesis)),
        ("ledger", ledger_in_words(place)),
        ("data", config.data.display().to_string()),
    ];
    if config.page {
        facts.push(("page", format!("{scheme}://{address}/ in a browser")));
    }
    if let Some(tls) = tls {
        facts.push(("certificate", tls.certificate().display().to_string()));
        facts.push(("  SHA-256", tls.fingerprint()));
    }
    show::facts(&facts);
    if arguments.tls_self_signed
        && let Some(tls) = tls
    {
        anstream::println!(
            "This certificate is self-signed. Give its file to participants, who use it with \
             --certificate {} and can compare the fingerprint above. Never share the key next to \
             it.",
            tls.certificate().display()
        );
    }
    if let Some(file) = &arguments.address_file {
        // The file appears under its name only when it is complete.
        let unfinished = file.with_extension("unfinished");
        std::fs::write(&unfinished, format!("{address}\n"))
            .and_then(|()| std::fs::rename(&unfinished, file))
            .with_context(|| file.display().to_string())?;
    }
    Ok(())
}

fn ledger_in_words(place: &LedgerInfo) -> String {
    match place {
        LedgerInfo::Embedded => "embedded".to_owned(),
        LedgerInfo::Ethereum(info) => {
            let rpc = info.rpc.as_deref().unwrap_or("none suggested");
            format!("contract {}, node {rpc}", info.market)
        }
    }
}

/// Resolves on Ctrl-C or SIGTERM. A second signal ends the process at once; everything acknowledged
/// is on disk.
pub(super) fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut asked = StopSignals::listen()?;
    Ok(async move {
        asked.recv().await;
        tokio::spawn(async move {
            asked.recv().await;
            anstream::eprintln!("Stopped at once. A restart resumes where it stopped.");
            #[expect(
                clippy::disallowed_methods,
                reason = "ends like SIGKILL, without destructors"
            )]
            std::process::exit(Exit::Interrupted as i32);
        });
    })
}

/// Receives Ctrl-C and SIGTERM.
struct StopSignals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl StopSignals {
    fn listen() -> anyhow::Result<Self> {
        #[cfg(unix)]
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            #[cfg(unix)]
            terminate: signal(SignalKind::terminate()).context("cannot listen for signals")?,
        })
    }

    /// Resolves on the next signal.
    async fn recv(&mut self) {
        let interrupt = async {
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await; // unsupported here: SIGTERM remains
            }
        };
        #[cfg(unix)]
        tokio::select! {
            () = interrupt => {}
            _ = self.terminate.recv() => {}
        }
        #[cfg(not(unix))]
        interrupt.await;
    }
}
