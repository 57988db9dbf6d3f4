//! Completion scripts and manual pages cover every command that the help lists.

use std::process::Command;

use crate::support::florin;

/// The commands that `florin PARENT… --help` lists.
fn listed(parents: &[&str]) -> Vec<String> {
    let help = florin(&[parents, &["--help"]].concat()).expect(0).out;
    let commands = help.split("Commands:\n").nth(1).unwrap_or_default().lines();
    let commands = commands.take_while(|line| !line.is_empty());
    // A command is indented by two spaces, and the rest of its description further.
    let names = commands.filter_map(|line| line.strip_prefix("  ").filter(|l| !l.starts_with(' ')));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn the_bash_script_completes_commands_and_options() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("florin.bash");
    std::fs::write(&script, florin(&["completions", "bash"]).expect(0).out).unwrap();
    let complete = |words: &[&str]| {
        let line = format!(
            "source {}\nCOMP_WORDS=({}); COMP_CWORD={}; _florin florin {} {}\n\
             echo \"${{COMPREPLY[*]}}\"",
            script.display(),
            words.join(" "),
            words.len() - 1,
            words[words.len() - 1],
            words[words.len() - 2],
        );
        let output = Command::new("bash").args(["-c", &line]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(complete(&["florin", "tas"]), "task");
    assert_eq!(complete(&["florin", "task", "fol"]), "follow");
    assert_eq!(complete(&["florin", "audit", "--spot"]), "--spot-check");
}

#[test]
fn every_shell_has_a_script_with_every_command() {
    let commands = listed(&[]);
    assert!(commands.len() > 15, "{commands:?}");
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = florin(&["completions", shell]).expect(0).out;
        for command in &commands {
            assert!(script.contains(command.as_str()), "{shell} lacks {command}");
        }
    }
    florin(&["completions", "tcsh"]).expect(2);
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("man1");
    florin(&["man", "--out", out.to_str().unwrap()]).expect(0);
    let page = |name: &str| std::fs::read_to_string(out.join(format!("{name}.1")));
    for command in listed(&[]) {
        let text = page(&format!("florin-{command}")).unwrap();
        assert!(text.contains(".SH NAME"), "{command}: {text}");
        for below in listed(&[&command]) {
            page(&format!("florin-{command}-{below}")).unwrap();
        }
    }
    assert!(page("florin-audit").unwrap().contains("spot"), "options are described");
    assert!(page("florin-bench").is_err(), "hidden commands have no page");
}
