//! `ramfold block --tls` with clients that have the right certificate, another or none.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use support::{RAMFOLD, has, signal, succeeds, text, wait_until};
use tempfile::TempDir;

/// Certificates, each kind in the folder that its user names.
struct Certificates(TempDir);

impl Certificates {
    fn new() -> Certificates {
        let certificates = Certificates(tempfile::tempdir().unwrap());
        for authority in ["ours", "theirs"] {
            let folder = certificates.folder(authority);
            fs::create_dir(&folder).unwrap();
            openssl(&folder, "req -x509 -subj /CN=authority -keyout ca-key.pem -out ca-cert.pem");
            certificate(&folder, "server", "subjectAltName=IP:127.0.0.1");
            certificate(&folder, "client", "extendedKeyUsage=clientAuth");
        }
        let folder = certificates.folder("none");
        fs::create_dir(&folder).unwrap();
        let authority = certificates.folder("ours").join("ca-cert.pem");
        fs::copy(authority, folder.join("ca-cert.pem")).unwrap();
        certificates
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A folder with these files, each of another folder.
    fn mixed(&self, files: [(&str, &str); 3]) -> PathBuf {
        let mixed = self.folder("mixed");
        fs::create_dir(&mixed).unwrap();
        for (from, name) in files {
            fs::copy(self.folder(from).join(name), mixed.join(name)).unwrap();
        }
        mixed
    }
}

fn openssl(folder: &Path, arguments: &str) {
    let mut command = Command::new("openssl");
    command.args(arguments.split(' ')).current_dir(folder).stderr(Stdio::null());
    if arguments.starts_with("req") {
        command.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
    }
    succeeds(&mut command);
}

fn certificate(folder: &Path, name: &str, extension: &str) {
    fs::write(folder.join("extensions"), extension).unwrap();
    openssl(folder, &format!("req -subj /CN={name} -keyout {name}-key.pem -out request.pem"));
    openssl(
        folder,
        &format!(
            "x509 -req -in request.pem -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial \
             -extfile extensions -out {name}-cert.pem"
        ),
    );
}

/// A server that all addresses of this machine reach.
struct Server {
    child: Child,
    port: String,
}

impl Server {
    fn start(folder: &Path, options: &[&str]) -> Server {
        let mut command = Command::new(RAMFOLD);
        command.args(["block", "--size", "64M", "--listen", "0.0.0.0:0", "--tls"]);
        let mut child = command.arg(folder).args(options).stdout(Stdio::piped()).spawn().unwrap();
        let mut uri = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut uri).unwrap();
        let port = uri.trim_end().strip_prefix("nbds://0.0.0.0:").unwrap();
        Server { child, port: port.strip_suffix('/').unwrap().to_owned() }
    }

    /// What nbdinfo says of it with the certificates in the folder.
    fn size(&self, scheme: &str, folder: &Path) -> Option<String> {
        let uri = format!("{scheme}://127.0.0.1:{}/", self.port);
        let folder = folder.display();
        let uri = if scheme == "nbd" { uri } else { format!("{uri}?tls-certificates={folder}") };
        let ended = Command::new("nbdinfo").args(["--size", &uri]).output().unwrap();
        ended.status.success().then(|| text(&ended.stdout).trim().to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn can_run() -> bool {
    let can = has("openssl", &["version"]);
    if !can {
        eprintln!("SKIPPED: there is no openssl");
    }
    can
}

#[test]
fn clients_are_served_by_their_certificates() {
    if !can_run() {
        return;
    }
    if !has("nbdinfo", &["--version"]) {
        return eprintln!("SKIPPED: there is no nbdinfo");
    }
    let certificates = Certificates::new();
    let [ours, theirs, none] = ["ours", "theirs", "none"].map(|name| certificates.folder(name));
    // A client that trusts the server, with a certificate of another authority.
    let stranger = certificates.mixed([
        ("ours", "ca-cert.pem"),
        ("theirs", "client-cert.pem"),
        ("theirs", "client-key.pem"),
    ]);
    let size = Some((64 << 20).to_string());
    let server = Server::start(&ours, &[]);
    assert_eq!(server.size("nbds", &ours), size);
    for folder in [&none, &stranger, &theirs] {
        assert_eq!(server.size("nbds", folder), None, "{}", folder.display());
    }
    assert_eq!(server.size("nbd", &ours), None);
    // It is served on, and ends as it should.
    assert_eq!(server.size("nbds", &ours), size);
    let mut server = server;
    signal(server.child.id(), "-INT");
    wait_until("the server ends", || server.child.try_wait().unwrap().is_some());
    assert!(server.child.wait().unwrap().success());
    let server = Server::start(&ours, &["--tls-any-client"]);
    for folder in [&none, &ours] {
        assert_eq!(server.size("nbds", folder), size, "{}", folder.display());
    }
    assert_eq!(server.size("nbd", &ours), None);
}

#[test]
fn every_byte_is_right_however_late_a_client_reads() {
    if !can_run() {
        return;
    }
    let certificates = Certificates::new();
    let ours = certificates.folder("ours");
    let server = Server::start(&ours, &[]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls_client.py");
    let mut command = Command::new("/usr/bin/python3");
    succeeds(command.arg(script).args(["127.0.0.1", &server.port]).arg(ours));
}

#[test]
fn bad_certificates_are_named() {
    if !can_run() {
        return;
    }
    let certificates = Certificates::new();
    let [ours, none] = ["ours", "none"].map(|name| certificates.folder(name));
    let said = |folder: &Path, listen: &[&str]| {
        let mut command = Command::new(RAMFOLD);
        command.args(["block", "--size", "64M", "--tls"]).arg(folder).args(listen);
        let ended = command.output().unwrap();
        assert_eq!(ended.status.code(), Some(125));
        text(&ended.stderr)
    };
    let listen = &["--listen", "127.0.0.1:0"];
    assert!(said(&none, listen).contains("server-key.pem"));
    assert!(said(Path::new("/nowhere"), listen).contains("/nowhere/ca-cert.pem"));
    assert!(said(&ours, &[]).contains("--listen"));
    let mixed = certificates.mixed([
        ("ours", "ca-cert.pem"),
        ("ours", "server-cert.pem"),
        ("theirs", "server-key.pem"),
    ]);
    assert!(said(&mixed, listen).contains("server-cert.pem with server-key.pem"));
    for name in ["server-cert.pem", "ca-cert.pem"] {
        fs::write(mixed.join(name), "no certificate").unwrap();
        let said = said(&mixed, listen);
        assert!(said.contains(name) && said.contains("no certificate"), "{said}");
    }
}
