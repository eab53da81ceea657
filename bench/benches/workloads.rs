//! The workloads of the comparison, for `nn` alone: `cargo bench -p nn-bench`, on as many threads as `BENCH_THREADS`
//! says (1).

#![allow(missing_docs, reason = "criterion's macros make public functions")]

use criterion::{Criterion, criterion_group, criterion_main};

fn workloads(c: &mut Criterion) {
    let threads = std::env::var("BENCH_THREADS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
    for name in nn_bench::NAMES {
        c.bench_function(name, |b| {
            // Made only if it is asked for.
            let mut work = nn_bench::work(name).expect("a name of the list").expect("memory");
            pool.install(|| b.iter(|| (work.call)()));
        });
    }
}

criterion_group!(benches, workloads);
criterion_main!(benches);
