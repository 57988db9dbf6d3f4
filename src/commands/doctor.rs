//! `florin doctor`: checks what this machine provides, and prints how to install what is missing.

use std::path::Path;
use std::process::Command;

use florin_learning::EngineKind;
use florin_protocol::LedgerInfo;
use serde_json::json;

use crate::anvil;
use crate::cli::{AnvilArg, Doctor, MarketArg, NodeArg, TrustArg};
use crate::compose;
use crate::failure::Exit;
use crate::machine_facts::MachineFacts;
use crate::market::MarketConnection;
use crate::show::{self, BAD, Cell, GOOD, NOTE, TextTable};

/// The result of one check.
struct CheckResult {
    check: &'static str,
    state: CheckStatus,
    result: String,
    /// A remedy; empty if none is needed.
    advice: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckStatus {
    Good,
    /// Works, but could be improved.
    Note,
    Bad,
}

pub(super) fn run(arguments: &Doctor) -> anyhow::Result<Exit> {
    let machine = MachineFacts::read();
    let mut findings = vec![version(), good("processor", machine.processor_text())];
    findings.push(good("memory", machine.memory_text()));
    findings.extend(machine.gpus_text().map(|gpus| good("GPUs", gpus)));
    findings.extend([reference(), libtorch()]);
    findings.extend(gpu());
    findings.push(development_chain(&arguments.anvil));
    findings.push(temporary_folder());
    if let Some(folder) = &arguments.data {
        findings.push(data_folder(folder));
    }
    if let Some(market) = &arguments.market {
        findings.extend(market_findings(market, &arguments.trust));
    }
    if arguments.json.json {
        let rows: Vec<_> = findings.iter().map(as_json).collect();
        show::json(&rows)?;
    } else {
        print(&findings);
    }
    let bad = findings.iter().any(|finding| finding.state == CheckStatus::Bad);
    Ok(if bad { Exit::Negative } else { Exit::Done })
}

fn good(check: &'static str, result: impl Into<String>) -> CheckResult {
    CheckResult { check, state: CheckStatus::Good, result: result.into(), advice: String::new() }
}

fn version() -> CheckResult {
    let build = if cfg!(debug_assertions) { "development build" } else { "optimised build" };
    let system = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
    good("florin", format!("{} ({build}, {system})", env!("CARGO_PKG_VERSION")))
}

fn reference() -> CheckResult {
    good("reference engine", "always available: softmax regression and multilayer perceptrons")
}

#[cfg(feature = "torch")]
fn libtorch() -> CheckResult {
    match florin_learning::engine(EngineKind::Torch, 1) {
        Ok(engine) => good("libtorch", engine.name()),
        Err(error) => CheckResult {
            check: "libtorch",
            state: CheckStatus::Bad,
            result: error.to_string(),
            advice: "run `cargo xtask setup`, or use --engine reference".to_owned(),
        },
    }
}

#[cfg(not(feature = "torch"))]
fn libtorch() -> CheckResult {
    let missing = match florin_learning::engine(EngineKind::Torch, 1) {
        Ok(engine) => engine.name().to_owned(),
        Err(error) => error.to_string(),
    };
    CheckResult {
        check: "libtorch",
        state: CheckStatus::Note,
        result: missing,
        advice: "build with the feature `torch` for CNNs, higher speed and GPUs".to_owned(),
    }
}

#[cfg(feature = "torch")]
fn gpu() -> Option<CheckResult> {
    let probe = florin_learning::torch::probe();
    if probe.gpus > 0 {
        let library =
            probe.library.as_ref().map_or(String::new(), |path| format!(", {}", path.display()));
        let cudnn = if probe.cudnn { ", with cuDNN" } else { "" };
        return Some(good("CUDA", format!("{} GPUs{cudnn}{library}", probe.gpus)));
    }
    let tried: Vec<String> = probe
        .tried
        .iter()
        .map(|attempt| format!("{}: {}", attempt.path.display(), attempt.outcome))
        .collect();
    Some(CheckResult {
        check: "CUDA",
        state: CheckStatus::Note,
        result: format!(
            "no GPU; the processor trains and evaluates. Looked for the GPU part of PyTorch: {}",
            tried.join("; ")
        ),
        advice: format!(
            "optional; to use a GPU, set FLORIN_TORCH_CUDA to the lib folder of a PyTorch {} with \
             CUDA",
            probe.version
        ),
    })
}

#[cfg(not(feature = "torch"))]
fn gpu() -> Option<CheckResult> {
    None
}

/// Checks for `anvil`, which only `demo --ledger ethereum` needs.
fn development_chain(named: &AnvilArg) -> CheckResult {
    let program = anvil::program(named);
    let note = |result: String| CheckResult {
        check: "anvil",
        state: CheckStatus::Note,
        result,
        advice: format!("needed only by `florin demo --ledger ethereum`: {}", anvil::REMEDY),
    };
    match Command::new(&program).arg("--version").output() {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            let version = text.lines().next().unwrap_or_default().trim().to_owned();
            good("anvil", format!("{version} ({})", program.display()))
        }
        Ok(output) => {
            note(format!("{} --version failed with {}", program.display(), output.status))
        }
        Err(error) => note(format!("{} cannot be started ({error})", program.display())),
    }
}

fn temporary_folder() -> CheckResult {
    let folder = std::env::temp_dir();
    let probe = folder.join(format!("florin-doctor-{}", std::process::id()));
    let written = std::fs::write(&probe, b"florin").and_then(|()| std::fs::remove_file(&probe));
    match written {
        Ok(()) => good("temporary folder", folder.display().to_string()),
        Err(error) => CheckResult {
            check: "temporary folder",
            state: CheckStatus::Bad,
            result: format!("{}: {error}", folder.display()),
            advice: "the demonstration needs it: free some space, or set TMPDIR".to_owned(),
        },
    }
}

fn data_folder(folder: &Path) -> CheckResult {
    let result = folder.display().to_string();
    if folder.is_dir() {
        let advice = if compose::chain_file(folder).exists() {
            format!("verify its ledger with `florin ledger verify --data {result}`")
        } else {
            "it contains no ledger: verify a ledger on Ethereum with `florin ledger verify \
             --market URL`"
                .to_owned()
        };
        return CheckResult { check: "data folder", state: CheckStatus::Good, result, advice };
    }
    CheckResult {
        check: "data folder",
        state: CheckStatus::Bad,
        result: format!("{result}: does not exist"),
        advice: "`florin coordinate --data` creates it at the first start".to_owned(),
    }
}

/// Whether a market's coordinator answers, and which trust its ledger needs.
fn market_findings(url: &str, trust: &TrustArg) -> Vec<CheckResult> {
    let at = MarketArg { market: url.to_owned(), trust: trust.clone(), node: NodeArg::default() };
    let market = match MarketConnection::connect(&at) {
        Ok(market) => market,
        Err(error) => {
            return vec![CheckResult {
                check: "market",
                state: CheckStatus::Bad,
                result: format!("{error:#}"),
                advice: "check the URL (--market or FLORIN_MARKET), or unset it".to_owned(),
            }];
        }
    };
    let coordinator = market.coordinator().account;
    let ledger = match market.client().ledger() {
        LedgerInfo::Embedded => CheckResult {
            check: "ledger",
            state: CheckStatus::Note,
            result: format!(
                "embedded: its operator, the coordinator {coordinator}, alone orders, times and \
                 signs all blocks, and could leave out transactions or show different clients \
                 different blocks"
            ),
            advice: "use it for play money, or if you trust the operator with all of it; compare \
                     `florin ledger head` with other users, and run `florin ledger verify --market \
                     URL`"
                .to_owned(),
        },
        LedgerInfo::Ethereum(info) => {
            let chain = market.coordinator().market.chain;
            good("ledger", format!("contract {} on chain {chain}, without an owner", info.market))
        }
    };
    let answered = format!("{url} answers, florin {}", market.client().version());
    vec![good("market", answered), ledger]
}

fn as_json(finding: &CheckResult) -> serde_json::Value {
    let state = match finding.state {
        CheckStatus::Good => "good",
        CheckStatus::Note => "note",
        CheckStatus::Bad => "bad",
    };
    json!({
        "check": finding.check,
        "state": state,
        "result": finding.result,
        "advice": finding.advice,
    })
}

fn print(findings: &[CheckResult]) {
    let mut table = TextTable::new(&["", "check", "result"]);
    for finding in findings {
        let mark = match finding.state {
            CheckStatus::Good => Cell::styled("✓", GOOD),
            CheckStatus::Note => Cell::styled("·", NOTE),
            CheckStatus::Bad => Cell::styled("✗", BAD),
        };
        table.row([mark, finding.check.into(), (&finding.result).into()]);
        if !finding.advice.is_empty() {
            let advice = Cell::styled(format!("→ {}", finding.advice), show::DIM);
            table.row(["".into(), "".into(), advice]);
        }
    }
    table.print_wrapped();
}
