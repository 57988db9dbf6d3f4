//! A program whose libtorch cannot be loaded: what computes nothing works, and the rest is refused with a remedy.

#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
#[test]
fn a_missing_libtorch_stops_no_other_command() {
    use crate::support::process::command;

    let folder = tempfile::tempdir().unwrap();
    for name in ["libc10.so", "libtorch_cpu.so"] {
        std::fs::write(folder.path().join(name), "no library").unwrap();
    }
    let run = |arguments: &[&str]| {
        let output = command(arguments)
            .current_dir(folder.path())
            .env("LD_LIBRARY_PATH", folder.path())
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    assert_eq!(run(&["--version"]).0, Some(0));
    let (code, doctor) = run(&["doctor", "--json"]);
    assert!(doctor.contains("libtorch cannot be loaded: "), "{code:?}: {doctor}");
    assert!(doctor.contains("reference engine"), "the other checks are made: {doctor}");
    let training = ["demo", "--rounds", "1", "--engine"];
    let (code, refused) = run(&[&training[..], &["torch"]].concat());
    assert!(code == Some(3) && refused.contains("NO_ENGINE"), "{code:?}: {refused}");
    assert!(refused.contains("use `reference`"), "{refused}");
}
