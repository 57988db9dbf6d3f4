//! Failures of the program: a stable code, a message, the causes and an exit code.

use std::error::Error;
use std::fmt;
use std::io;

use florin_learning::data::LoadError;
use florin_learning::engine::TrainError;
use florin_ledger::{LedgerError, Refusal};
use florin_participant::leases::LeaseServeError;
use florin_participant::{
    AgentError, ArbitrationError, AuditError, ClaimError, ClientError, GuardError, HashChainError,
    NoiseError, ProducerError, ProviderError, SecretError, StatementError, WalletError, WatchError,
};
use florin_protocol::{Rejection, SpecError};

/// The exit code of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Success.
    Done = 0,
    /// The command ran, and the result is negative: a check failed, or the market or its ledger
    /// refused a request.
    Negative = 1,
    /// Wrong usage or input, which the caller can correct.
    Input = 2,
    /// An internal or system error.
    Fault = 3,
    /// Stopped by Ctrl-C or SIGTERM before the result was complete: 128 + SIGINT, as in shells.
    Interrupted = 130,
}

/// A failure of the program, with its stable code. Causes are attached with `anyhow`'s context.
#[derive(Debug)]
pub struct Failure {
    code: &'static str,
    exit: Exit,
    message: String,
}

impl Failure {
    /// A failure by wrong input.
    pub fn input(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, exit: Exit::Input, message: message.into() }
    }

    /// A request for a part of the program that this build leaves out.
    #[cfg_attr(
        all(feature = "ethereum", feature = "otlp"),
        expect(dead_code, reason = "this build leaves nothing out")
    )]
    pub(crate) fn not_built(feature: &str, part: &str) -> Self {
        let message = format!(
            "this program was built without {part}: build it with `cargo build --features \
             {feature}`, or whole with `cargo install --path .`"
        );
        Self::input("FEATURE_NOT_BUILT", message)
    }

    /// A failed check or a refused request.
    pub fn negative(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, exit: Exit::Negative, message: message.into() }
    }

    /// A command that Ctrl-C or SIGTERM stopped.
    pub(crate) fn interrupted(message: impl Into<String>) -> Self {
        Self { code: "INTERRUPTED", exit: Exit::Interrupted, message: message.into() }
    }

    /// An internal or system error.
    pub fn fault(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, exit: Exit::Fault, message: message.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Failure {}

/// The code and the exit code of an error: those of the first link of its chain that has any.
pub fn classify(error: &anyhow::Error) -> (String, Exit) {
    error
        .chain()
        .find_map(classify_by_type)
        .or_else(|| error.chain().find_map(classify_by_message))
        .unwrap_or_else(|| ("INTERNAL".to_owned(), Exit::Fault))
}

fn classify_by_type(link: &(dyn Error + 'static)) -> Option<(String, Exit)> {
    if let Some(failure) = link.downcast_ref::<Failure>() {
        return Some((failure.code.to_owned(), failure.exit));
    }
    if let Some(rejection) = link.downcast_ref::<Rejection>() {
        return Some((rejection.code.to_string(), Exit::Negative));
    }
    if link.downcast_ref::<SpecError>().is_some() {
        return Some(("INVALID_TASK".to_owned(), Exit::Input));
    }
    if let Some(error) = link.downcast_ref::<LedgerError>() {
        return Some(classify_ledger(error));
    }
    if let Some(found) = classify_participant(link) {
        return Some(found);
    }
    if let Some(error) = link.downcast_ref::<LoadError>() {
        return Some(match error {
            LoadError::Unreadable { source, .. } | LoadError::Unwritable { source, .. } => {
                classify_io(source)
            }
            _ => ("INVALID_DATA".to_owned(), Exit::Input),
        });
    }
    link.downcast_ref::<io::Error>().map(classify_io)
}

fn classify_io(error: &io::Error) -> (String, Exit) {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            ("STORAGE_FULL".to_owned(), Exit::Fault)
        }
        io::ErrorKind::AddrInUse => ("PORT_IN_USE".to_owned(), Exit::Input),
        io::ErrorKind::NotFound => ("FILE_NOT_FOUND".to_owned(), Exit::Input),
        io::ErrorKind::PermissionDenied => ("PERMISSION_DENIED".to_owned(), Exit::Input),
        io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => {
            ("NOT_A_FILE".to_owned(), Exit::Input)
        }
        _ => ("IO".to_owned(), Exit::Fault),
    }
}

fn classify_ledger(error: &LedgerError) -> (String, Exit) {
    let exit = match error {
        LedgerError::Refused(_) => Exit::Negative,
        // The payer can correct this: with more ether, or with a higher fee limit.
        LedgerError::Gas(_) => Exit::Input,
        LedgerError::Unavailable(_)
        | LedgerError::Corrupt(_)
        | LedgerError::Outbox(_)
        | LedgerError::Signing(_) => Exit::Fault,
    };
    (florin_participant::ledger_code(error).to_owned(), exit)
}

/// Codes of our libraries that mean wrong input by the caller; any other code means a fault.
const INPUT_CODES: [&str; 62] = [
    "NO_COMPUTE_CLASS",
    "INVALID_POLICY",
    "NOISE_MISSING",
    "NOISE_UNSUPPORTED",
    "PRODUCER_ADDRESS",
    "PRODUCER_FOLDER",
    "PRODUCER_INVALID",
    "PRODUCER_SETTINGS",
    "NOISE_TOO_LOW",
    "UNPROTECTED_UPDATES",
    "DELTA_TOO_LARGE",
    "INVALID_NOISE",
    "BOND_LIMIT_TOO_LOW",
    "FEATURE_NOT_BUILT",
    "INVALID_SETTINGS",
    "DATA_FOLDER_NOT_SET",
    "INVALID_BUCKET_SETTINGS",
    "BUCKET_MISSING",
    "BUCKET_FORBIDDEN",
    "INVALID_TLS_SETTINGS",
    "TLS_NOT_TRUSTED",
    "TLS_KEY_UNREADABLE",
    "TLS_KEY_MISSING",
    "TLS_KEY_UNSUPPORTED",
    "TLS_KEY_MISMATCH",
    "CERTIFICATE_UNREADABLE",
    "CERTIFICATE_MISSING",
    "CERTIFICATE_MALFORMED",
    "CERTIFICATE_NAME_MISMATCH",
    "CERTIFICATE_NOT_CREATED",
    "FILES_LIMIT",
    "METRICS_LISTEN_FAILED",
    "NO_KEYSTORE",
    "KEYSTORE_EXISTS",
    "KEYSTORE_CORRUPT",
    "WRONG_PASSPHRASE",
    "EMPTY_PASSPHRASE",
    "INVALID_PHRASE",
    "INVALID_KEY",
    "SECRET_UNREADABLE",
    "SECRET_TOO_LONG",
    "SECRET_NOT_SET",
    "INVALID_URL",
    "INVALID_DATA",
    "INVALID_GENESIS",
    "NO_ENGINE",
    "COORDINATOR_CHANGED",
    "PERMISSION_DENIED",
    "DATA_FOLDER_IN_USE",
    "DATA_FOLDER_WITHOUT_IDENTITY",
    "FOLDER_NOT_EMPTY",
    "BACKUP_INCOMPLETE",
    "LEDGER_LOCKED",
    "LEDGER_MISSING",
    "LEDGER_EXISTS",
    "WRONG_OPERATOR",
    "JOURNAL_OWNER_MISMATCH",
    "GAS_NOT_PAID",
    "DATA_MISMATCH",
    "PRECISION_UNSUPPORTED",
    "WRONG_WEIGHTS",
    "ROUNDS_OUT_OF_RANGE",
];

fn classify_code(code: &str) -> (String, Exit) {
    let exit = if INPUT_CODES.contains(&code) { Exit::Input } else { Exit::Fault };
    (code.to_owned(), exit)
}

/// The code of an error of `florin-participant`.
fn classify_participant(link: &(dyn Error + 'static)) -> Option<(String, Exit)> {
    if let Some(error) = link.downcast_ref::<ClientError>() {
        return Some(classify_client(error));
    }
    // An agent's rejection has the same code and exit code as any other client's.
    match link.downcast_ref::<AgentError>().or_else(|| inner_agent_error(link)) {
        Some(AgentError::Client(error)) => return Some(classify_client(error)),
        Some(AgentError::Ledger(error)) => return Some(classify_ledger(error)),
        Some(
            error @ (AgentError::TaskClosed { .. }
            | AgentError::PayTooLow { .. }
            | AgentError::TrainingTooSlow { .. }
            | AgentError::ArbiterNotAccepted { .. }
            | AgentError::ModelNotDerived { .. }
            | AgentError::TrainerNotAccepted { .. }
            | AgentError::Noise(NoiseError::EpsilonExhausted { .. })
            | AgentError::Declined { .. }),
        ) => {
            return Some((error.code().to_owned(), Exit::Negative));
        }
        Some(error @ AgentError::Training { source: TrainError::Memory(_), .. }) => {
            return Some((error.code().to_owned(), Exit::Negative));
        }
        Some(error @ AgentError::Training { source: TrainError::Ranks(ranks), .. }) => {
            let exit = if ranks.code.is_input() { Exit::Input } else { Exit::Negative };
            return Some((error.code().to_owned(), exit));
        }
        _ => {}
    }
    match link.downcast_ref::<ProviderError>() {
        Some(ProviderError::Client(error)) => return Some(classify_client(error)),
        Some(ProviderError::Ledger(error)) => return Some(classify_ledger(error)),
        _ => {}
    }
    match link.downcast_ref::<LeaseServeError>() {
        Some(LeaseServeError::Client(error)) => return Some(classify_client(error)),
        Some(LeaseServeError::Ledger(error)) => return Some(classify_ledger(error)),
        Some(error) => return Some(classify_code(error.code())),
        None => {}
    }
    if let Some(found) = classify_arbitration(link) {
        return Some(found);
    }
    let code = link.downcast_ref::<WatchError>().map(WatchError::code);
    let code = code.or_else(|| link.downcast_ref::<WalletError>().map(WalletError::code));
    let code = code.or_else(|| link.downcast_ref::<SecretError>().map(SecretError::code));
    let code = code.or_else(|| link.downcast_ref::<GuardError>().map(GuardError::code));
    let code = code.or_else(|| link.downcast_ref::<HashChainError>().map(HashChainError::code));
    let code = code.or_else(|| link.downcast_ref::<NoiseError>().map(NoiseError::code));
    let code = code.or_else(|| link.downcast_ref::<ProducerError>().map(ProducerError::code));
    let code = code.or_else(|| link.downcast_ref::<AgentError>().map(AgentError::code));
    let code = code.or_else(|| link.downcast_ref::<ClaimError>().map(ClaimError::code));
    let code = code.or_else(|| link.downcast_ref::<AuditError>().map(AuditError::code));
    let code = code.or_else(|| link.downcast_ref::<ProviderError>().map(ProviderError::code));
    let code = code.or_else(|| link.downcast_ref::<StatementError>().map(StatementError::code));
    code.map(classify_code)
}

/// The code of an error of an arbiter's action or watch.
fn classify_arbitration(link: &(dyn Error + 'static)) -> Option<(String, Exit)> {
    let watched = match link.downcast_ref::<WatchError>() {
        Some(WatchError::Client(error)) => return Some(classify_client(error)),
        Some(WatchError::Ledger(error)) => return Some(classify_ledger(error)),
        Some(WatchError::Arbitration(error)) => Some(error),
        _ => None,
    };
    match watched.or_else(|| link.downcast_ref::<ArbitrationError>())? {
        ArbitrationError::Ledger(error) => Some(classify_ledger(error)),
        error => Some((error.code().to_owned(), Exit::Negative)),
    }
}

fn classify_client(error: &ClientError) -> (String, Exit) {
    let rejected = error.rejection().map(|rejection| (rejection.code.to_string(), Exit::Negative));
    rejected.unwrap_or_else(|| classify_code(error.code()))
}

fn inner_agent_error<'a>(link: &'a (dyn Error + 'static)) -> Option<&'a AgentError> {
    match link.downcast_ref::<ProviderError>() {
        Some(ProviderError::Agent(error)) => Some(error),
        _ => None,
    }
}

/// A code written at the end of a message, as in `… [WRONG_PASSPHRASE]`.
fn classify_by_message(link: &(dyn Error + 'static)) -> Option<(String, Exit)> {
    let text = link.to_string();
    let (_, code) = split_code(&text);
    code.map(classify_code)
}

fn split_code(text: &str) -> (&str, Option<&str>) {
    let split = || {
        let (message, code) = text.strip_suffix(']')?.rsplit_once(" [")?;
        let is_code = !code.is_empty()
            && code.bytes().all(|b| b.is_ascii_uppercase() || b == b'_' || b.is_ascii_digit());
        is_code.then_some((message, code))
    };
    split().map_or((text, None), |(message, code)| (message, Some(code)))
}

/// The messages of an error: its own, and each cause that an earlier message does not contain.
fn messages(error: &anyhow::Error) -> Vec<String> {
    let mut messages: Vec<String> = Vec::new();
    for link in error.chain() {
        let text = link.to_string();
        let (message, _) = split_code(&text);
        if !messages.iter().any(|before| before.contains(message)) {
            messages.push(message.to_owned());
        }
    }
    messages
}

/// An error with its causes, in one line.
pub(crate) fn in_one_line(error: &anyhow::Error) -> String {
    messages(error).join(": ")
}

/// Prints an error: the code, the message and the causes.
pub fn print_error(error: &anyhow::Error) {
    use anstyle::{AnsiColor, Style};
    let (code, _) = classify(error);
    let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    let messages = messages(error);
    let mut lines = messages.iter();
    let first = lines.next().map_or("", String::as_str);
    anstream::eprintln!("{red}error[{code}]{red:#}: {first}");
    for cause in lines {
        anstream::eprintln!("  because: {cause}");
    }
    if let Some(remedy) = remedy(error) {
        anstream::eprintln!("  remedy: {remedy}");
    }
}

/// The advice or the command that mends an error, if there is one.
fn remedy(error: &anyhow::Error) -> Option<String> {
    match classify(error).0.as_str() {
        "FILE_NOT_FOUND" => {
            let folder = std::env::current_dir().ok()?;
            return Some(format!("check the path; a relative path starts at {}", folder.display()));
        }
        "COORDINATOR_UNAVAILABLE" => {
            return Some(
                "check the address (--market, FLORIN_MARKET), and that `florin coordinate` runs \
                 there"
                    .to_owned(),
            );
        }
        _ => {}
    }
    error.chain().find_map(refusal).and_then(|refusal| match refusal {
        Refusal::Insufficient { account, available, needed } => {
            let missing = needed.minus(*available).ok()?;
            Some(format!(
                "fund the account from another wallet: florin transfer {account} {missing} \
                 --wallet FILE"
            ))
        }
        _ => None,
    })
}

/// The ledger's refusal inside a link of an error chain.
fn refusal<'a>(link: &'a (dyn Error + 'static)) -> Option<&'a Refusal> {
    let of_agent = |error: &'a AgentError| match error {
        AgentError::Ledger(error) => Some(error),
        _ => None,
    };
    let ledger = link
        .downcast_ref::<LedgerError>()
        .or_else(|| link.downcast_ref::<AgentError>().and_then(of_agent))
        .or_else(|| inner_agent_error(link).and_then(of_agent))
        .or_else(|| match link.downcast_ref::<ProviderError>() {
            Some(ProviderError::Ledger(error)) => Some(error),
            _ => None,
        });
    match ledger {
        Some(LedgerError::Refused(refusal)) => Some(refusal),
        _ => None,
    }
}

/// Prints an error as one line of JSON, for commands whose result is JSON.
pub fn print_json_error(error: &anyhow::Error) {
    anstream::eprintln!("{}", as_json(error));
}

fn as_json(error: &anyhow::Error) -> serde_json::Value {
    let (code, _) = classify(error);
    let messages = messages(error);
    let (message, causes) = messages.split_first().map_or(("", &[][..]), |(m, c)| (m.as_str(), c));
    let mut failure = serde_json::json!({ "code": code, "message": message, "causes": causes });
    if let Some(remedy) = remedy(error) {
        failure["remedy"] = remedy.into();
    }
    serde_json::json!({ "error": failure })
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn the_first_code_in_the_error_chain_wins() {
        let refused =
            florin_protocol::Rejection::new(florin_protocol::ErrorCode::WrongRound, "too late");
        let error = Err::<(), _>(refused).context("round 3").unwrap_err();
        assert_eq!(classify(&error), ("WRONG_ROUND".to_owned(), Exit::Negative));
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let error = Err::<(), _>(full).context("journal").unwrap_err();
        assert_eq!(classify(&error), ("STORAGE_FULL".to_owned(), Exit::Fault));
        assert_eq!(classify(&anyhow::anyhow!("odd")), ("INTERNAL".to_owned(), Exit::Fault));
        let error = anyhow::anyhow!("w.json: the passphrase is wrong [WRONG_PASSPHRASE]");
        assert_eq!(classify(&error), ("WRONG_PASSPHRASE".to_owned(), Exit::Input));
    }

    #[test]
    fn an_error_inside_an_agent_error_keeps_its_code_and_exit_code() {
        let refused = || LedgerError::Refused(Refusal::InvalidArgument("nothing".to_owned()));
        let rejection = || Rejection::new(florin_protocol::ErrorCode::BondTooSmall, "more");
        let no = |code: &str| (code.to_owned(), Exit::Negative);
        let agent = |error: AgentError| classify(&error.into());
        let provider = |error: ProviderError| classify(&error.into());
        assert_eq!(agent(refused().into()), no("INVALID_ARGUMENT"));
        assert_eq!(agent(ClientError::from(rejection()).into()), no("BOND_TOO_SMALL"));
        assert_eq!(provider(refused().into()), no("INVALID_ARGUMENT"));
        assert_eq!(provider(AgentError::from(refused()).into()), no("INVALID_ARGUMENT"));
        let away = || LedgerError::Unavailable("away".to_owned());
        assert_eq!(agent(away().into()), ("LEDGER_UNAVAILABLE".to_owned(), Exit::Fault));
        let gas = LedgerError::Gas("none".to_owned());
        assert_eq!(provider(gas.into()), ("GAS_NOT_PAID".to_owned(), Exit::Input));
    }

    #[test]
    fn an_error_in_json_has_code_message_and_causes() {
        let error = anyhow::anyhow!("the passphrase is wrong [WRONG_PASSPHRASE]").context("w.json");
        let found = serde_json::json!({ "error": {
            "code": "WRONG_PASSPHRASE",
            "message": "w.json",
            "causes": ["the passphrase is wrong"],
        } });
        assert_eq!(as_json(&error), found);
    }

    #[test]
    fn the_remedy_for_an_empty_account_is_a_transfer_of_the_missing_amount() {
        let fln = |text: &str| text.parse::<florin_protocol::Amount>().unwrap();
        let account = florin_protocol::Address([7; 20]);
        let empty = || {
            let (available, needed) = (fln("0.5"), fln("3"));
            LedgerError::Refused(Refusal::Insufficient { account, available, needed })
        };
        let expected = format!(
            "fund the account from another wallet: florin transfer {account} 2.5 --wallet FILE"
        );
        let agent = || AgentError::from(empty());
        for error in [
            anyhow::Error::from(empty()).context("task publish"),
            agent().into(),
            ProviderError::from(empty()).into(),
            ProviderError::from(agent()).into(),
        ] {
            assert_eq!(remedy(&error), Some(expected.clone()), "{error:?}");
        }
        let other = LedgerError::Refused(Refusal::NothingToClaim);
        assert_eq!(remedy(&other.into()), None);
        assert_eq!(as_json(&empty().into())["error"]["remedy"], expected);
    }

    #[test]
    fn only_an_uppercase_suffix_in_brackets_is_a_code() {
        assert_eq!(split_code("no [such] thing"), ("no [such] thing", None));
        assert_eq!(split_code("a list [1, 2]"), ("a list [1, 2]", None));
        assert_eq!(split_code("late [TOO_LATE]"), ("late", Some("TOO_LATE")));
    }
}
