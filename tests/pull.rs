//! Runs `waterline pull` against a local hub that cuts connections, redirects, and serves bytes other than those it listed.

mod common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use common::Workplace;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const SHA: &str = "0123456789abcdef";

/// The hub's behaviour for each file.
#[derive(Clone, Default)]
struct Hub {
    files: HashMap<String, Vec<u8>>,
    /// Hashes that are listed instead of the true ones.
    listed: HashMap<String, String>,
    /// The number of bytes after which each connection ends.
    cut: Option<usize>,
    /// The access token that requests need.
    token: Option<&'static str>,
    /// Names that are listed in addition to the files.
    more: Vec<&'static str>,
    ignores_ranges: bool,
    /// The listing, if it is not made from the files.
    listing: Option<Value>,
    /// Whether listings, and files, end after their headers, with the connection open.
    is_silent: [bool; 2],
    /// The hub that holds the files, to which requests are redirected.
    far: String,
}

/// A running hub, and the requests it has received.
struct Running {
    endpoint: String,
    seen: Arc<Mutex<Vec<String>>>,
}

/// Git's hash of a file, by git itself.
fn git_hash(bytes: &[u8]) -> String {
    let mut git = Command::new("git")
        .args(["hash-object", "--stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("git");
    git.stdin
        .take()
        .expect("a pipe")
        .write_all(bytes)
        .expect("read");
    let said = git.wait_with_output().expect("a hash").stdout;
    String::from_utf8(said).expect("digits").trim().into()
}

fn hash(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Hub {
    fn run(self) -> Running {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let log = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Ignores clients that disconnect early.
                let _ = self.answer(stream, &log);
            }
        });
        Running { endpoint, seen }
    }

    fn listing(&self) -> Value {
        let sibling = |(name, bytes): (&String, &Vec<u8>)| {
            let listed = self.listed.get(name).cloned();
            if name.ends_with(".gguf") {
                let sha256 = listed.unwrap_or_else(|| hash(bytes));
                json!({
                    "rfilename": name, "size": bytes.len(), "blobId": "ab",
                    "lfs": { "sha256": sha256, "size": bytes.len() },
                })
            } else {
                let blob = listed.unwrap_or_else(|| git_hash(bytes));
                json!({ "rfilename": name, "size": bytes.len(), "blobId": blob })
            }
        };
        if let Some(listing) = &self.listing {
            return listing.clone();
        }
        let more = self
            .more
            .iter()
            .map(|name| json!({ "rfilename": name, "size": 1, "blobId": "ab" }));
        json!({ "sha": SHA, "siblings": self.files.iter().map(sibling).chain(more).collect::<Vec<_>>() })
    }

    fn answer(&self, mut stream: TcpStream, log: &Mutex<Vec<String>>) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let request = lines.next().transpose()?.unwrap_or_default();
        let mut headers = HashMap::new();
        for line in lines {
            let line = line?;
            let Some((name, value)) = line.split_once(": ") else {
                break;
            };
            headers.insert(name.to_lowercase(), value.to_string());
        }
        let range = headers.get("range").cloned().unwrap_or_default();
        let authorization = headers.get("authorization").cloned().unwrap_or_default();
        let seen = format!("{request} {authorization}{range}");
        log.lock().unwrap().push(seen);
        let path = request.split(' ').nth(1).unwrap_or_default();
        let key = self.token.map(|token| format!("Bearer {token}"));
        if key.is_some() && headers.get("authorization") != key.as_ref() {
            return write!(
                stream,
                "HTTP/1.1 401 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
        }
        if path.starts_with("/api/models/org/name/") {
            let body = self.listing().to_string();
            let length = body.len();
            if self.is_silent[0] {
                write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"
                )?;
                return silence(stream);
            }
            return write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
        }
        if let Some(file) = path.strip_prefix(&format!("/org/name/resolve/{SHA}/")) {
            // Redirects to the file's location, as the hub does.
            return write!(
                stream,
                "HTTP/1.1 302 Found\r\nLocation: {}/far/{file}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                self.far
            );
        }
        let bytes = path
            .strip_prefix("/far/")
            .and_then(|file| self.files.get(&file.replace("%20", " ")));
        let Some(bytes) = bytes else {
            return write!(
                stream,
                "HTTP/1.1 404 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
        };
        let start = range
            .strip_prefix("bytes=")
            .and_then(|range| range.strip_suffix('-'));
        let start: usize = start.and_then(|start| start.parse().ok()).unwrap_or(0);
        let start = if self.ignores_ranges { 0 } else { start };
        let status = if start > 0 {
            "206 Partial Content"
        } else {
            "200 OK"
        };
        let rest = &bytes[start..];
        let shown = &rest[..self.cut.unwrap_or(usize::MAX).min(rest.len())];
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            rest.len()
        )?;
        if self.is_silent[1] {
            return silence(stream);
        }
        stream.write_all(shown)
    }
}

/// Keeps a connection open until its client closes it.
fn silence(mut stream: TcpStream) -> std::io::Result<()> {
    std::thread::spawn(move || stream.read(&mut [0]));
    Ok(())
}

/// Runs a pull with the environment it needs.
fn pull(
    place: &Workplace,
    hub: &Running,
    arguments: &[&str],
    token: Option<&str>,
) -> common::Outcome {
    let mut command = place.command(arguments);
    command
        .env("HF_ENDPOINT", &hub.endpoint)
        .env("HF_HOME", place.path("cache"))
        .env_remove("HF_HUB_CACHE")
        .env_remove("HF_TOKEN_PATH")
        .env_remove("HF_TOKEN");
    if let Some(token) = token {
        command.env("HF_TOKEN", token);
    }
    common::outcome(&mut command)
}

fn model() -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/model/waterline-chat.gguf");
    std::fs::read(folder).expect("the model")
}

fn hub_of(name: &str, bytes: &[u8]) -> Hub {
    Hub {
        files: HashMap::from([
            (name.into(), bytes.to_vec()),
            ("README.md".into(), b"x".to_vec()),
        ]),
        ..Hub::default()
    }
}

#[test]
fn a_model_is_downloaded_once_and_opens_by_its_name() {
    let (place, bytes) = (Workplace::new(), model());
    let hub = Hub {
        token: Some("secret"),
        ..hub_of("chat-Q8_0.gguf", &bytes)
    }
    .run();
    pull(&place, &hub, &["pull", "org/name"], None).failed(2, &["HF_TOKEN"]);
    let path = pull(&place, &hub, &["pull", "hf:org/name"], Some("secret"))
        .succeeded()
        .text();
    assert!(
        path.ends_with(&format!(
            "models--org--name/snapshots/{SHA}/chat-Q8_0.gguf\n"
        )),
        "{path}"
    );
    assert!(std::fs::read(path.trim()).expect("the file") == bytes);
    let blob = place
        .path("cache/hub/models--org--name/blobs")
        .join(hash(&bytes));
    assert!(blob.is_file());
    assert_eq!(
        std::fs::read_to_string(place.path("cache/hub/models--org--name/refs/main")).unwrap(),
        SHA
    );
    let requests = hub.seen.lock().unwrap().len();
    let run = [
        "run",
        "hf:org/name:q8_0",
        "-p",
        "Once upon a time",
        "-n",
        "2",
        "--threads",
        "1",
    ];
    let said = pull(&place, &hub, &run, Some("secret"));
    assert!(
        said.status == Some(0) && !said.stdout.is_empty(),
        "{}",
        said.stderr
    );
    // Only the listing was read again.
    assert_eq!(hub.seen.lock().unwrap().len(), requests + 1);
    // If the hub is unreachable, the cache is enough.
    let gone = Running {
        endpoint: "http://127.0.0.1:9".into(),
        seen: Arc::default(),
    };
    let cached = pull(&place, &gone, &["pull", "org/name"], None);
    assert_eq!((cached.status, cached.text()), (Some(0), path));
}

#[test]
fn what_was_cut_off_goes_on_where_it_ended() {
    let bytes: Vec<u8> = (0..100_000u32).flat_map(|i| i.to_le_bytes()).collect();
    for ignores_ranges in [false, true] {
        let place = Workplace::new();
        // A hub without range requests has to serve the complete file.
        let cut = (!ignores_ranges).then_some(90_000);
        let hub = Hub {
            cut,
            ignores_ranges,
            ..hub_of("m.gguf", &bytes)
        }
        .run();
        let blobs = place.path("cache/hub/models--org--name/blobs");
        std::fs::create_dir_all(&blobs).expect("a folder");
        std::fs::write(
            blobs.join(format!("{}.incomplete", hash(&bytes))),
            &bytes[..1_000],
        )
        .expect("a file");
        let path = pull(&place, &hub, &["pull", "org/name:m.gguf"], None)
            .succeeded()
            .text();
        assert!(std::fs::read(path.trim()).expect("the file") == bytes);
        let seen = hub.seen.lock().unwrap();
        assert!(
            seen.iter().any(|request| request.ends_with("bytes=1000-")),
            "{seen:?}"
        );
        assert!(
            ignores_ranges || seen.iter().any(|request| request.ends_with("bytes=91000-")),
            "{seen:?}"
        );
    }
}

#[test]
fn what_is_not_as_listed_is_not_kept() {
    let place = Workplace::new();
    let listed = HashMap::from([("m.gguf".to_string(), "0".repeat(64))]);
    let hub = Hub {
        listed,
        ..hub_of("m.gguf", b"other bytes")
    }
    .run();
    pull(&place, &hub, &["pull", "org/name"], None)
        .failed(2, &["m.gguf", "SHA-256", "expected 0000"]);
    let kept =
        std::fs::read_dir(place.path("cache/hub/models--org--name/blobs")).expect("a folder");
    assert_eq!(kept.count(), 0);
    let place = Workplace::new();
    let stalled = Hub {
        cut: Some(0),
        ..hub_of("m.gguf", b"other bytes")
    }
    .run();
    pull(&place, &stalled, &["pull", "org/name"], None).failed(2, &["0 of 11 bytes"]);
    for name in ["../../../evil.gguf", "/etc/evil.gguf"] {
        let hub = Hub {
            more: vec![name],
            ..hub_of("m.gguf", b"bytes")
        }
        .run();
        pull(&place, &hub, &["pull", "org/name"], None).failed(2, &["outside"]);
    }
    let hub = hub_of("m.gguf", b"bytes").run();
    pull(&place, &hub, &["pull", "org/other"], None).failed(2, &["no such repository"]);
    pull(&place, &hub, &["pull", "org/name:Q4"], None).failed(2, &["Q4", "m.gguf"]);
    for name in ["name", "../name", "org/..", "a/b/c"] {
        pull(&place, &hub, &["pull", name], None).failed(2, &["org/name"]);
    }
}

#[test]
fn a_hub_that_says_nothing_more_is_given_up() {
    let gives_up = |is_silent, said| {
        let place = Workplace::new();
        let hub = Hub {
            is_silent,
            ..hub_of("m.gguf", b"other bytes")
        }
        .run();
        pull(&place, &hub, &["pull", "org/name"], None).failed(2, &[said]);
    };
    // Both wait for time limits.
    std::thread::scope(|scope| {
        scope.spawn(|| gives_up([true, false], "org/name: "));
        gives_up([false, true], "found 0 of 11 bytes");
    });
}

#[test]
fn a_hub_that_ignores_ranges_and_cuts_is_asked_a_few_times() {
    let place = Workplace::new();
    let bytes: Vec<u8> = (0..100_000u32).flat_map(|i| i.to_le_bytes()).collect();
    let hub = Hub {
        cut: Some(90_000),
        ignores_ranges: true,
        ..hub_of("m.gguf", &bytes)
    }
    .run();
    pull(&place, &hub, &["pull", "org/name"], None).failed(2, &["m.gguf"]);
    let requests = hub.seen.lock().unwrap().len();
    assert!(requests < 20, "{requests} requests");
}

#[test]
fn a_mixed_small_file_is_refused_and_one_without_size_or_hash_too() {
    let folder = |config: &[u8]| Hub {
        files: HashMap::from([
            ("config.json".into(), config.to_vec()),
            ("model.safetensors".into(), b"weights".to_vec()),
        ]),
        ..Hub::default()
    };
    let place = Workplace::new();
    let whole = folder(b"{\"a\": 1}").run();
    pull(&place, &whole, &["pull", "org/name"], None).succeeded();
    // Half of it is of another version.
    let mixed = Hub {
        listed: HashMap::from([("config.json".into(), git_hash(b"{\"a\": 1}"))]),
        ..folder(b"{\"a\": 2}")
    }
    .run();
    let place = Workplace::new();
    pull(&place, &mixed, &["pull", "org/name"], None).failed(2, &["config.json", "git's hash"]);
    let unknown = |sibling: Value| Hub {
        listing: Some(json!({ "sha": SHA, "siblings": [sibling] })),
        ..hub_of("m.gguf", b"")
    };
    for sibling in [
        json!({ "rfilename": "m.gguf", "size": null, "blobId": git_hash(b"") }),
        json!({ "rfilename": "m.gguf", "blobId": git_hash(b""), "lfs": { "sha256": hash(b""), "size": null } }),
        json!({ "rfilename": "m.gguf", "size": 0, "blobId": null }),
        json!({ "rfilename": "m.gguf", "size": 0, "blobId": "ab" }),
    ] {
        let hub = unknown(sibling.clone()).run();
        let outcome = pull(&place, &hub, &["pull", "org/other"], None);
        outcome.failed(2, &["no such repository"]);
        let outcome = pull(&Workplace::new(), &hub, &["pull", "org/name"], None);
        outcome.failed(2, &["no size or no hash"]);
    }
}

#[test]
fn the_token_goes_to_the_hub_alone() {
    let (place, bytes) = (Workplace::new(), b"bytes".to_vec());
    let far = hub_of("my model.gguf", &bytes).run();
    let hub = Hub {
        far: far.endpoint.clone(),
        token: Some("secret"),
        ..hub_of("my model.gguf", &bytes)
    }
    .run();
    // The token that the hub's own program has saved.
    std::fs::create_dir_all(place.path("cache")).expect("a folder");
    std::fs::write(place.path("cache/token"), "secret\n").expect("a file");
    let path = pull(&place, &hub, &["pull", "org/name:my model"], None)
        .succeeded()
        .text();
    assert_eq!(std::fs::read(path.trim_end()).expect("the file"), bytes);
    let seen = |hub: &Running| hub.seen.lock().unwrap().join("\n");
    assert!(seen(&hub).contains("Bearer secret"));
    assert!(
        seen(&far).contains("/far/my%20model.gguf") && !seen(&far).contains("secret"),
        "{}",
        seen(&far)
    );
}

#[test]
fn names_cannot_control_the_terminal() {
    for name in [
        "a\u{1b}[31m.gguf",
        "a\u{202e}.gguf",
        "a\nb.gguf",
        "a\u{9b}m.gguf",
    ] {
        let listing = json!({ "sha": SHA, "siblings": [
            { "rfilename": name, "size": 1, "blobId": "0".repeat(40) },
            { "rfilename": "b.gguf", "size": 1, "blobId": "0".repeat(40) },
        ]});
        let hub = Hub {
            listing: Some(listing),
            ..hub_of("b.gguf", b"x")
        }
        .run();
        for wanted in ["org/name", "org/name:Q4"] {
            let outcome = pull(&Workplace::new(), &hub, &["pull", wanted], None);
            let said = outcome.stderr.clone() + &String::from_utf8_lossy(&outcome.stdout);
            assert!(!said.contains(['\u{1b}', '\u{202e}', '\u{9b}']), "{said:?}");
            outcome.failed(2, &["control a terminal"]);
        }
    }
}

#[test]
fn two_downloads_of_one_model_do_not_harm_each_other() {
    let bytes: Vec<u8> = (0..300_000u32).flat_map(|i| i.to_le_bytes()).collect();
    let place = Workplace::new();
    let hub = Hub {
        cut: Some(100_000),
        ..hub_of("m.gguf", &bytes)
    }
    .run();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let path = pull(&place, &hub, &["pull", "org/name"], None)
                    .succeeded()
                    .text();
                assert!(std::fs::read(path.trim()).expect("the file") == bytes);
            });
        }
    });
}

/// The lines of `list --json`.
fn listed(place: &Workplace, hub: &Running) -> Vec<Value> {
    let text = pull(place, hub, &["list", "--json"], None)
        .succeeded()
        .text();
    let value = |line: &str| serde_json::from_str(line).expect("JSON");
    text.lines().map(value).collect()
}

fn names(list: &[Value]) -> Vec<&str> {
    let names = list.iter().map(|model| model["name"].as_str());
    names.map(|name| name.expect("a name")).collect()
}

#[test]
fn a_pulled_model_opens_by_the_name_in_the_list_and_is_removed() {
    let (place, bytes) = (Workplace::new(), model());
    let mut hub = hub_of("chat-Q8_0.gguf", &bytes);
    hub.files.insert("chat-Q4_0.gguf".into(), b"other".to_vec());
    let hub = hub.run();
    let path = pull(&place, &hub, &["pull", "org/name:Q8_0"], None)
        .succeeded()
        .text();
    let list = listed(&place, &hub);
    assert_eq!(names(&list), ["name"]);
    assert_eq!(list[0]["path"], path.trim());
    assert_eq!(list[0]["bytes"], bytes.len());
    let text = pull(&place, &hub, &["list"], None).succeeded().text();
    assert!(text.starts_with("name ") && text.contains("MiB"), "{text}");
    let requests = hub.seen.lock().unwrap().len();
    for name in ["name", "NAME", "org/name", "name:q8_0"] {
        let run = ["run", name, "Once upon a time", "-n", "2", "--threads", "1"];
        pull(&place, &hub, &run, None).succeeded();
    }
    pull(&place, &hub, &["run", "name"], None).failed(2, &["no prompt"]);
    // A measurement names the file's hash.
    let report = place.name("report.json");
    let bench = [
        "bench",
        "name",
        "--prompt",
        "8",
        "--gen",
        "2",
        "--threads",
        "1",
        "--json",
        &report,
    ];
    pull(&place, &hub, &bench, None);
    let report = std::fs::read_to_string(report).expect("a report");
    assert!(report.contains(&hash(&bytes)), "{report}");
    assert_eq!(hub.seen.lock().unwrap().len(), requests);
    // With a second model, the name alone is ambiguous.
    pull(&place, &hub, &["pull", "org/name:Q4_0"], None).succeeded();
    assert_eq!(names(&listed(&place, &hub)), ["name:Q4_0", "name:Q8_0"]);
    for command in ["rm", "inspect"] {
        let outcome = pull(&place, &hub, &[command, "name"], None);
        outcome.failed(2, &["several", "name:Q4_0, name:Q8_0"]);
    }
    // A wrong name removes nothing.
    let both = ["rm", "name:Q8_0", "name:Q2_K"];
    pull(&place, &hub, &both, None).failed(2, &["name:Q2_K"]);
    let removed = pull(&place, &hub, &["rm", "name:Q8_0", "org/name:Q8_0"], None);
    let said = removed.succeeded().text();
    assert!(
        said.contains("org/name:chat-Q8_0.gguf") && said.lines().count() == 1,
        "{said}"
    );
    assert!(!std::path::Path::new(path.trim()).exists());
    let blobs = place.path("cache/hub/models--org--name/blobs");
    assert!(!blobs.join(hash(&bytes)).exists() && blobs.join(hash(b"other")).exists());
    assert_eq!(names(&listed(&place, &hub)), ["name"]);
    pull(&place, &hub, &["rm", "name"], None).succeeded();
    assert!(!place.path("cache/hub/models--org--name").exists());
    assert!(listed(&place, &hub).is_empty());
    pull(&place, &hub, &["rm", "name"], None).failed(2, &["waterline list"]);
}

#[test]
fn contents_that_another_model_has_stay() {
    let place = Workplace::new();
    let mut hub = hub_of("a.gguf", b"weights");
    hub.files.insert("b.gguf".into(), b"weights".to_vec());
    let hub = hub.run();
    let path = |name| pull(&place, &hub, &["pull", name], None).succeeded().text();
    let (first, second) = (path("org/name:a.gguf"), path("org/name:b.gguf"));
    let removed = pull(&place, &hub, &["rm", "name:a"], None)
        .succeeded()
        .text();
    assert!(removed.contains("0 B freed"), "{removed}");
    assert!(!std::path::Path::new(first.trim()).exists());
    assert_eq!(std::fs::read(second.trim()).expect("the file"), b"weights");
    // A hard link, as where symbolic links are not allowed, leads to its contents too.
    let blob = place
        .path("cache/hub/models--org--name/blobs")
        .join(hash(b"weights"));
    std::fs::remove_file(second.trim()).expect("removed");
    std::fs::hard_link(&blob, second.trim()).expect("a link");
    let removed = pull(&place, &hub, &["rm", "name"], None).succeeded().text();
    assert!(removed.contains("7 B freed"), "{removed}");
    assert!(!blob.exists());
}

#[test]
fn a_download_that_has_not_ended_is_listed_and_removed_unless_it_runs() {
    let place = Workplace::new();
    let hub = hub_of("m.gguf", b"bytes").run();
    let folder = place.path("cache/hub/models--org--name/blobs");
    std::fs::create_dir_all(&folder).expect("a folder");
    let part = folder.join(format!("{}.incomplete", hash(b"bytes")));
    std::fs::write(&part, "byt").expect("a file");
    let list = listed(&place, &hub);
    assert_eq!(names(&list), ["name"]);
    assert_eq!(
        (&list[0]["path"], &list[0]["bytes"]),
        (&Value::Null, &json!(3))
    );
    let inspected = pull(&place, &hub, &["inspect", "name"], None);
    inspected.failed(2, &["has not ended", "waterline pull org/name"]);
    let locks = place.path("cache/hub/.locks/models--org--name");
    std::fs::create_dir_all(&locks).expect("a folder");
    let lock = std::fs::File::create(locks.join(format!("{}.lock", hash(b"bytes"))));
    let lock = lock.expect("a lock");
    lock.lock().expect("locked");
    pull(&place, &hub, &["rm", "name"], None).failed(2, &["another process"]);
    drop(lock);
    pull(&place, &hub, &["rm", "name"], None).succeeded();
    assert!(!part.exists());
}

#[test]
fn a_directory_is_removed_and_one_name_of_two_repositories_is_refused() {
    let place = Workplace::new();
    let hub = Hub {
        files: HashMap::from([
            ("config.json".into(), b"{}".to_vec()),
            ("model.safetensors".into(), b"weights".to_vec()),
            ("rwkv_vocab.txt".into(), b"1 'a' 1".to_vec()),
            ("tokenizer.model".into(), b"pieces".to_vec()),
            ("merges.txt".into(), b"a b".to_vec()),
            ("training.bin".into(), b"pickle".to_vec()),
        ]),
        ..Hub::default()
    }
    .run();
    let path = pull(&place, &hub, &["pull", "org/name"], None)
        .succeeded()
        .text();
    for name in ["rwkv_vocab.txt", "tokenizer.model", "merges.txt"] {
        assert!(
            std::path::Path::new(path.trim()).join(name).exists(),
            "{name}"
        );
    }
    assert_eq!(std::fs::read_dir(path.trim()).expect("a folder").count(), 5);
    // A repository that another program downloaded, with its bytes in the snapshot itself.
    let other = place.path("cache/hub/models--far--name/snapshots/ab");
    std::fs::create_dir_all(&other).expect("a folder");
    std::fs::write(other.join("m.gguf"), "weights").expect("a file");
    std::fs::write(other.join("README.md"), "text").expect("a file");
    assert_eq!(names(&listed(&place, &hub)), ["far/name", "org/name"]);
    let outcome = pull(&place, &hub, &["rm", "name"], None);
    outcome.failed(2, &["far/name, org/name"]);
    let removed = pull(&place, &hub, &["rm", "far/name"], None)
        .succeeded()
        .text();
    assert!(removed.contains("7 B freed"), "{removed}");
    assert!(!other.join("m.gguf").exists() && other.join("README.md").exists());
    pull(&place, &hub, &["rm", "org/name"], None).succeeded();
    assert!(!place.path("cache/hub/models--org--name").exists());
}
