//! Failures of the command line: clap's message, with the code `USAGE`.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::cli;
use crate::failure::{Exit, Failure, print_json_error};

/// The stable code of a wrong command line.
const CODE: &str = "USAGE";

/// Prints a failure of the command line, or the requested help text, and returns the exit code.
pub(crate) fn print(error: &clap::Error) -> Exit {
    let is_request = matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    if is_request {
        // A closed pipe is no failure.
        let _ = error.print();
        return if error.use_stderr() { Exit::Input } else { Exit::Done };
    }
    let tip = tip(error);
    let words: Vec<OsString> = std::env::args_os().collect();
    if cli::requests_json(words) {
        print_json_error(&Failure::input(CODE, message(error, tip.as_deref())).into());
    } else {
        let text = error.render().ansi().to_string();
        anstream::eprint!("{}", text.replacen("error:", &format!("error[{CODE}]:"), 1));
        if let Some(tip) = tip {
            anstream::eprintln!("\n  tip: {tip}");
        }
    }
    Exit::Input
}

/// clap's message without colours, its first word and its advice to print the help text.
fn message(error: &clap::Error, tip: Option<&str>) -> String {
    let text = error.render().to_string();
    let text = text.strip_prefix("error:").unwrap_or(&text);
    let text = text.split("\nUsage:").next().unwrap_or(text);
    let text = text.split("\nFor more information").next().unwrap_or(text);
    let words: Vec<&str> = text.split_whitespace().collect();
    let tip = tip.map_or_else(String::new, |tip| format!("; {tip}"));
    format!("{}{tip}", words.join(" "))
}

/// The environment variables that replace the missing options.
fn tip(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    if error.kind() != ErrorKind::MissingRequiredArgument {
        return None;
    }
    let exports = cli::variables_for(std::env::args_os(), missing);
    (!exports.is_empty())
        .then(|| format!("to give it once for all commands: export {}", exports.join(" ")))
}
