//! `florin wallet new|import|show|export`, and the source of the passphrase for every command.

use std::io::{IsTerminal, Read};
use std::path::Path;

use anyhow::Context;
use florin_participant::{KeystoreStrength, SECRET_BYTES_MAX, Secret, Wallet, WalletError};
use florin_protocol::{Address, WalletSigner};
use serde_json::json;

use crate::cli::{
    self, PassphraseArg, WalletArg, WalletExport, WalletImport, WalletNew, WalletShow,
};
use crate::failure::{Exit, Failure};
use crate::show::{self, NOTE};

/// The variable that holds the passphrase if no file is given.
const VARIABLE: &str = "FLORIN_PASSPHRASE";
/// The variable that holds the passphrase of an exported copy.
const NEW_VARIABLE: &str = "FLORIN_NEW_PASSPHRASE";

pub(super) fn run(command: cli::WalletCommand) -> anyhow::Result<Exit> {
    match command {
        cli::WalletCommand::New(arguments) => new(&arguments),
        cli::WalletCommand::Import(arguments) => import(&arguments),
        cli::WalletCommand::Show(arguments) => show(&arguments),
        cli::WalletCommand::Export(arguments) => export(&arguments),
    }
}

/// Opens the wallet that the arguments name.
pub(crate) fn open(arg: &WalletArg) -> anyhow::Result<Wallet> {
    open_file(&arg.wallet, &arg.passphrase)
}

/// Opens the wallet of a file.
///
/// # Errors
/// Those of [`open`].
pub(crate) fn open_file(file: &Path, passphrase_arg: &PassphraseArg) -> anyhow::Result<Wallet> {
    require(file)?;
    let question = format!("Passphrase of {}: ", file.display());
    let passphrase = passphrase(passphrase_arg, VARIABLE, &question)?;
    Ok(Wallet::open(file, &passphrase)?)
}

/// Refuses a file that does not exist, before a passphrase is asked for.
fn require(file: &Path) -> anyhow::Result<()> {
    match file.try_exists() {
        Ok(false) => Err(WalletError::NoKeystore { path: file.to_owned() }.into()),
        Ok(true) | Err(_) => Ok(()),
    }
}

/// Reads a passphrase: from a file, otherwise from a variable, otherwise from a prompt.
fn passphrase(arg: &PassphraseArg, variable: &str, question: &str) -> anyhow::Result<Secret> {
    if let Some(file) = &arg.passphrase_file {
        return Ok(Secret::from_file(file)?);
    }
    if std::env::var_os(variable).is_some() {
        return Ok(Secret::from_env(variable)?);
    }
    prompt(question, &format!("use --passphrase-file, or set {variable}"))
}

fn prompt(question: &str, otherwise: &str) -> anyhow::Result<Secret> {
    if !std::io::stdin().is_terminal() {
        let message = format!("no terminal for a prompt: {otherwise}");
        return Err(Failure::input("NO_SECRET", message).into());
    }
    let text = rpassword::prompt_password(question).context("cannot read from the terminal")?;
    Ok(Secret::new(text))
}

/// Reads the passphrase of a new file; a prompt asks twice.
fn new_passphrase(arg: &PassphraseArg, variable: &str) -> anyhow::Result<Secret> {
    let asked = arg.passphrase_file.is_none() && std::env::var_os(variable).is_none();
    let first = passphrase(arg, variable, "New passphrase: ")?;
    if asked {
        let second = passphrase(arg, variable, "Repeat the passphrase: ")?;
        if first.reveal() != second.reveal() {
            let message =
                "the two passphrases differ, and nothing was written: run the command again";
            return Err(Failure::input("PASSPHRASES_DIFFER", message).into());
        }
    }
    Ok(first)
}

fn strength(light: bool) -> KeystoreStrength {
    if light { KeystoreStrength::Light } else { KeystoreStrength::Standard }
}

fn new(arguments: &WalletNew) -> anyhow::Result<Exit> {
    let passphrase = new_passphrase(&arguments.passphrase, VARIABLE)?;
    let (wallet, phrase) = Wallet::create(&arguments.file, &passphrase, strength(arguments.light))?;
    let shown = arguments.show_phrase || std::io::stdout().is_terminal();
    if arguments.json.json {
        let mut value = json!({ "address": wallet.address(), "file": arguments.file });
        if arguments.show_phrase {
            value["phrase"] = phrase.reveal().into();
        }
        show::json(&value)?;
        return Ok(Exit::Done);
    }
    print_wallet(&wallet, &arguments.file);
    if shown {
        anstream::println!(
            "\n{NOTE}Recovery phrase. It is shown only now and is not stored: write it down on \
             paper.\n\
             Anyone who has it controls this account.{NOTE:#}\n\n  {}\n",
            phrase.reveal()
        );
    } else {
        show::hint(
            "The recovery phrase was not printed, because the output is not a terminal (use \
             --show-phrase to print it). Without the key file and its passphrase this account is \
             lost.",
        );
    }
    Ok(Exit::Done)
}

fn print_wallet(wallet: &Wallet, file: &Path) {
    show::facts(&[
        ("address", wallet.address().to_string()),
        ("key file", file.display().to_string()),
    ]);
}

fn import(arguments: &WalletImport) -> anyhow::Result<Exit> {
    let file = &arguments.file;
    let strength = strength(arguments.light);
    let wallet = if let Some(from) = &arguments.keystore {
        let question = format!("Passphrase of {}: ", from.display());
        let passphrase = passphrase(&arguments.passphrase, VARIABLE, &question)?;
        Wallet::import_keystore(file, from, &passphrase, strength)?
    } else {
        let what = if arguments.key { "Private key: " } else { "Recovery phrase: " };
        let secret = read_secret(what)?;
        let passphrase = new_passphrase(&arguments.passphrase, VARIABLE)?;
        if arguments.key {
            Wallet::import_key(file, &secret, &passphrase, strength)?
        } else {
            Wallet::import_phrase(file, &secret, &passphrase, strength)?
        }
    };
    if arguments.json.json {
        show::json(&json!({ "address": wallet.address(), "file": file }))?;
    } else {
        print_wallet(&wallet, file);
    }
    Ok(Exit::Done)
}

/// Reads a secret from a hidden prompt, or from standard input if it is not a terminal.
fn read_secret(question: &str) -> anyhow::Result<Secret> {
    if std::io::stdin().is_terminal() {
        return prompt(question, "");
    }
    let mut text = String::new();
    std::io::stdin()
        .take(SECRET_BYTES_MAX)
        .read_to_string(&mut text)
        .context("cannot read standard input")?;
    let secret = Secret::new(text.trim().to_owned());
    if secret.reveal().is_empty() {
        let message =
            "standard input is empty: pipe the recovery phrase or the private key into it";
        return Err(Failure::input("NO_SECRET", message).into());
    }
    Ok(secret)
}

/// The address in a key file, without unlocking it.
pub(crate) fn keystore_address(file: &Path) -> anyhow::Result<Address> {
    let corrupt = |what: &str| {
        let message =
            format!("{} is not a keystore v3 file with an address: {what}", file.display());
        Failure::input("KEYSTORE_CORRUPT", message)
    };
    require(file)?;
    let text = std::fs::read(file).with_context(|| file.display().to_string())?;
    let value: serde_json::Value =
        serde_json::from_slice(&text).map_err(|error| corrupt(&error.to_string()))?;
    let address = value.get("address").and_then(|address| address.as_str());
    let address = address.ok_or_else(|| corrupt("the address is missing"))?;
    Ok(address.parse().map_err(|error: florin_protocol::IdError| corrupt(&error.to_string()))?)
}

/// The account that the arguments name: an address, or a key file, which is not unlocked.
pub(crate) fn account(named: Option<Address>, file: Option<&Path>) -> anyhow::Result<Address> {
    match (named, file) {
        (Some(account), _) => Ok(account),
        (None, Some(file)) => keystore_address(file),
        (None, None) => {
            let message = "no account: give an address, or a key file with --wallet";
            Err(Failure::input("NO_ACCOUNT", message).into())
        }
    }
}

fn show(arguments: &WalletShow) -> anyhow::Result<Exit> {
    let address = keystore_address(&arguments.wallet)?;
    if arguments.json.json {
        show::json(&json!({ "address": address, "file": arguments.wallet }))?;
    } else {
        show::facts(&[
            ("address", address.to_string()),
            ("key file", arguments.wallet.display().to_string()),
        ]);
    }
    Ok(Exit::Done)
}

fn export(arguments: &WalletExport) -> anyhow::Result<Exit> {
    let wallet = open(&arguments.wallet)?;
    let source = PassphraseArg { passphrase_file: arguments.new_passphrase_file.clone() };
    let passphrase = new_passphrase(&source, NEW_VARIABLE)?;
    wallet.export(&arguments.to, &passphrase, KeystoreStrength::Standard)?;
    print_wallet(&wallet, &arguments.to);
    Ok(Exit::Done)
}
