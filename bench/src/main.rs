//! `nn` as one of the programs that `scripts/bench-peers` compares: it answers one line with one line.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::time::Duration;

use nn_bench::{Timing, Work, work};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = std::env::var("BENCH_THREADS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    // The calls are made by the pool's own threads, so that handing work over costs nothing.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    pool.install(serve)?;
    Ok(())
}

fn serve() -> std::io::Result<()> {
    let mut ready = HashMap::new();
    let mut out = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        if words == ["quit"] {
            break;
        }
        writeln!(out, "{}", answer(&words, &mut ready))?;
        out.flush()?;
    }
    Ok(())
}

fn answer(words: &[&str], ready: &mut HashMap<String, (Work, Timing)>) -> String {
    match words {
        ["hello"] => format!("hello nn {}", env!("CARGO_PKG_VERSION")),
        ["prepare", name] => match work(name) {
            None => format!("unsupported {name} there is no such workload"),
            Some(Err(error)) => format!("unsupported {name} {error}"),
            Some(Ok(mut work)) => {
                let timing = Timing::new(&mut work);
                let params = work.params;
                ready.insert((*name).to_owned(), (work, timing));
                format!("ready {name} params={params}")
            }
        },
        ["time", name, seconds] => match (ready.get_mut(*name), seconds.parse()) {
            (Some((work, timing)), Ok(seconds)) => {
                let samples = timing.samples(work, Duration::from_secs_f64(seconds));
                let samples: Vec<_> = samples.iter().map(|ns| format!(" {ns:.1}")).collect();
                format!("times {name}{}", samples.concat())
            }
            _ => format!("unsupported {name} it was not prepared, or the time is no number"),
        },
        ["memory", name] => {
            memory(name).unwrap_or_else(|| format!("unsupported {name} it can't be measured here"))
        }
        ["forget", name] => {
            ready.remove(*name);
            format!("forgotten {name}")
        }
        _ => "error: hello, prepare NAME, time NAME SECONDS, memory NAME, forget NAME, quit".to_owned(),
    }
}

/// How far the process's memory grows at most, from before the workload is made to after three calls.
fn memory(name: &str) -> Option<String> {
    // The highest mark is set back to what is used now.
    std::fs::write("/proc/self/clear_refs", "5").ok()?;
    let before = status("VmRSS:")?;
    let mut work = work(name)?.ok()?;
    (0..3).for_each(|_| (work.call)());
    Some(format!("memory {name} {}", 1024 * status("VmHWM:")?.saturating_sub(before)))
}

/// A number of kibibytes that the system tells about this process.
fn status(key: &str) -> Option<usize> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    text.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().next()?.parse().ok()
}
