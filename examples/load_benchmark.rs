//! How much the load generator itself adds: it drives a server of known timing on this machine.
//!
//! ```text
//! cargo run --release --example load_benchmark -- [STREAMS] [GAP_MS] [TOKENS] [REQUESTS] [FIRST_MS]
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use setpoint::load::{Flow, Plan, Target, drive};
use setpoint::metrics::summarize;
use setpoint::workload::Random;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep_until;

/// The server's own times, in microseconds after a request's last byte had arrived.
#[derive(Default)]
struct Own {
    requests: AtomicU64,
    first: AtomicU64,
    last: AtomicU64,
}

#[derive(Clone, Copy)]
struct Timing {
    first: Duration,
    gap: Duration,
    tokens: u32,
}

async fn serve(mut stream: TcpStream, timing: Timing, own: &Own) -> std::io::Result<()> {
    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.set_nodelay(true)?;
    let chunk = |event: String| format!("{:x}\r\n{event}\r\n", event.len());
    let token = |finish| {
        format!(
            r#"data: {{"id":"cmpl-0123456789abcdef0123456789abcdef","object":"text_completion","created":1700000000,"model":"m","choices":[{{"index":0,"text":" word","logprobs":null,"finish_reason":{finish},"stop_reason":null}}],"usage":null}}"#
        ) + "\n\n"
    };
    let more = chunk(token("null"));
    let usage = format!(
        "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":1,\"completion_tokens\":{}}}}}\n\n",
        timing.tokens
    );
    let last = [chunk(token("\"length\"")), chunk(usage), chunk("data: [DONE]\n\n".to_owned()), "0\r\n\r\n".to_owned()];
    let mut buffer = Vec::new();
    loop {
        // The body's closing brace is the only one that ends a read: requests are not pipelined.
        while !buffer.ends_with(b"]}") {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        buffer.clear();
        let began = Instant::now();
        stream.write_all(HEAD.as_bytes()).await?;
        for index in 0..timing.tokens {
            sleep_until((began + timing.first + timing.gap * index).into()).await;
            let event = if index + 1 == timing.tokens { last.concat() } else { more.clone() };
            stream.write_all(event.as_bytes()).await?;
            if index == 0 {
                own.first.fetch_add(micros(began.elapsed()), Ordering::Relaxed);
            }
        }
        own.last.fetch_add(micros(began.elapsed()), Ordering::Relaxed);
        own.requests.fetch_add(1, Ordering::Relaxed);
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Starts the server on a thread of its own.
fn start(timing: Timing, own: Arc<Own>) -> std::io::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    std::thread::Builder::new().name("server".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async move {
            let listener = TcpListener::from_std(listener)?;
            loop {
                let (stream, _) = listener.accept().await?;
                let own = Arc::clone(&own);
                tokio::spawn(async move { serve(stream, timing, &own).await });
            }
            #[expect(unreachable_code, reason = "names the type of the errors above")]
            std::io::Result::Ok(())
        })
    })?;
    Ok(address)
}

/// CPU seconds of this process without the server's thread. The load's own has ended and is in the process's total.
#[expect(clippy::cast_precision_loss, reason = "a benchmark is short")]
fn client_cpu_seconds() -> Result<f64, Box<dyn std::error::Error>> {
    let process = procfs::process::Process::myself()?;
    let threads = process.tasks()?.filter_map(|task| task.ok()?.stat().ok());
    let server: u64 = threads.filter(|stat| stat.comm == "server").map(|stat| stat.utime + stat.stime).sum();
    let total = process.stat()?;
    Ok((total.utime + total.stime - server) as f64 / procfs::ticks_per_second() as f64)
}

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stdout, reason = "it is what the program is for")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let given: Vec<u32> = std::env::args().skip(1).map(|arg| arg.parse()).collect::<Result<_, _>>()?;
    let argument = |index: usize, default: u32| given.get(index).copied().unwrap_or(default);
    let (streams, gap, tokens) = (argument(0, 128), argument(1, 10), argument(2, 200));
    let (requests, first) = (argument(3, 2 * streams), argument(4, 50));
    let timing = Timing { first: Duration::from_millis(first.into()), gap: Duration::from_millis(gap.into()), tokens };
    let own = Arc::new(Own::default());
    let target = Target::new(format!("http://{}", start(timing, Arc::clone(&own))?), "m");
    let workload = Arc::new(Random { input_len: 32, output_len: tokens, vocab_size: 32_000, seed: 0 });
    let plan = Plan::closed(streams as usize, requests.into());
    let (_stop, stop) = tokio::sync::watch::channel(false);

    let began = Instant::now();
    let run = drive(target, workload, plan, |_| Flow::Continue, stop).await?;
    let measured = summarize(&run.records);
    let client = client_cpu_seconds()?;
    let requests_seen = own.requests.load(Ordering::Relaxed).max(1);
    let mean = |sum: &AtomicU64| Duration::from_micros(sum.load(Ordering::Relaxed) / requests_seen).as_secs_f64() * 1e3;
    let metric = |name| measured.metric(name).unwrap_or(f64::NAN);
    println!("{streams} streams, first token after {first} ms, then one every {gap} ms, {requests} x {tokens} tokens");
    println!("completed {}, failed {} {:?}", measured.completed, measured.failed, measured.errors);
    println!("output        {:10.0} tokens/s", metric("output_throughput"));
    println!("client cpu    {client:10.2} s of {:.2} s", began.elapsed().as_secs_f64());
    println!("start to first send {:4.1} ms", (run.began - began).as_secs_f64() * 1e3);
    println!("mean ttft     {:10.2} ms, the server's own {:.2} ms", metric("mean_ttft_ms"), mean(&own.first));
    println!("p99 ttft      {:10.2} ms", metric("p99_ttft_ms"));
    println!("mean e2el     {:10.2} ms, the server's own {:.2} ms", metric("mean_e2el_ms"), mean(&own.last));
    println!("mean itl      {:10.3} ms", metric("mean_itl_ms"));
    Ok(())
}
