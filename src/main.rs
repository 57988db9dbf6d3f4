//! The command-line program: the library's command tree.

use std::process::ExitCode;

fn main() -> ExitCode {
    florin::program::main()
}
