//! Prints the throughput of the ledger on this machine:
//! `cargo run --release -p florin-ledger --example bench [TRANSFERS]`.

#[expect(clippy::disallowed_types, reason = "a benchmark measures wall-clock time")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count = std::env::args().nth(1).map_or(Ok(200_000), |text| text.parse())?;
    let folder = tempfile::tempdir()?;
    let start = std::time::Instant::now();
    let micros = || start.elapsed().as_micros();
    for row in florin_ledger::bench::transfers(folder.path(), count, &micros)? {
        let bar = row.bar.map_or_else(String::new, |bar| format!(" (at least {bar})"));
        println!("{:>9} {}  {}{bar}", row.value, row.unit, row.name);
    }
    Ok(())
}
