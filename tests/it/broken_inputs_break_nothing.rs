//! What once broke a parser, and a second of variants of it. `cargo xtask fuzz` takes longer.

use std::path::Path;

use crate::support::florin;

#[test]
fn the_fuzzer_finds_nothing_in_its_corpus_and_beside_it() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz");
    let copy = tempfile::tempdir().unwrap();
    for target in std::fs::read_dir(&corpus).unwrap().map(Result::unwrap) {
        let folder = copy.path().join(target.file_name());
        std::fs::create_dir(&folder).unwrap();
        for file in std::fs::read_dir(target.path()).unwrap().map(Result::unwrap) {
            std::fs::copy(file.path(), folder.join(file.file_name())).unwrap();
        }
    }
    let at = copy.path().display().to_string();
    let said = florin(&["fuzz", "--seconds", "1", "--seed", "7", "--corpus", &at]).expect(0);
    assert!(said.out.contains("fuzz: 8 targets, 0 broken"), "{said:?}");
}
