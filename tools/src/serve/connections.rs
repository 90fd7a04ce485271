//! The open connections: how many each peer may have, and which one ends when there is no room for another.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

/// Maximum connections; maximum of one peer on another machine and of one address of this machine, which may be a proxy's.
pub const MOST: usize = 1024;
pub const MOST_OF_PEER: usize = 128;
pub const MOST_OF_LOOPBACK: usize = 768;
/// Milliseconds for which a connection must have waited for its peer before another may take its place.
pub const WAITED: u64 = 250;
const NEVER: u64 = u64::MAX;

/// The table of open connections.
pub struct Connections {
    open: Mutex<Vec<Arc<Connection>>>,
    started: Instant,
}

/// The state of a connection.
pub struct Connection {
    peer: IpAddr,
    started: Instant,
    /// Requests that are not answered completely.
    requests: AtomicUsize,
    /// Whether the peer must send or accept bytes before the current request continues.
    waits: AtomicBool,
    /// Milliseconds from the server's start to the moment from which it waits for bytes of the peer; [`NEVER`] if it does not.
    since: AtomicU64,
    /// Notified to end the connection.
    pub end: Notify,
}

impl Default for Connections {
    fn default() -> Self {
        Connections {
            open: Mutex::default(),
            started: Instant::now(),
        }
    }
}

impl Connections {
    /// Adds a connection of `peer`. If there is no room, the connection that has waited longest for its peer ends. Returns `None` if all
    /// are busy.
    pub fn admit(&self, peer: IpAddr) -> Option<Arc<Connection>> {
        let peer = network(peer);
        let connection = Arc::new(Connection {
            peer,
            started: self.started,
            requests: AtomicUsize::new(0),
            waits: AtomicBool::new(false),
            since: AtomicU64::new(NEVER),
            end: Notify::new(),
        });
        let mut open = self.open();
        let share = match peer.is_loopback() {
            true => MOST_OF_LOOPBACK,
            false => MOST_OF_PEER,
        };
        if open.iter().filter(|other| other.peer == peer).count() >= share {
            end_longest(&mut open, |other| other.peer == peer)?;
        } else if open.len() >= MOST {
            end_longest(&mut open, |_| true)?;
        }
        open.push(Arc::clone(&connection));
        Some(connection)
    }

    /// Removes a connection that has ended.
    pub fn remove(&self, connection: &Arc<Connection>) {
        self.open().retain(|other| !Arc::ptr_eq(other, connection));
    }

    fn open(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the connection that has waited longest, of those that `is_of` selects. Returns `None` if none has waited.
fn end_longest(open: &mut Vec<Arc<Connection>>, is_of: impl Fn(&Connection) -> bool) -> Option<()> {
    let waited = open.iter().enumerate().filter(|(_, other)| is_of(other));
    let waited = waited.filter_map(|(index, other)| Some((other.waited()?, index)));
    let (longest, index) = waited.max()?;
    if longest < WAITED {
        return None;
    }
    open.swap_remove(index).end.notify_one();
    Some(())
}

/// The address that shares connections: an IPv6 peer usually has a whole /64 network.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into())
        }
        other => other,
    }
}

impl Connection {
    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Records that the peer sent or accepted bytes.
    pub fn touch(&self) {
        self.since.store(NEVER, Relaxed);
    }

    /// Records that the peer has nothing to read, or accepts nothing.
    pub fn stall(&self) {
        let _ = self
            .since
            .compare_exchange(NEVER, self.now(), Relaxed, Relaxed);
    }

    /// Records whether the current request waits for the peer.
    pub fn set_waits(&self, waits: bool) {
        self.waits.store(waits, Relaxed);
    }

    /// Milliseconds for which the connection has waited for its peer; `None` while the server works on a request.
    fn waited(&self) -> Option<u64> {
        let works = self.requests.load(Relaxed) > 0 && !self.waits.load(Relaxed);
        let since = Some(self.since.load(Relaxed)).filter(|&since| since != NEVER && !works);
        since.map(|since| self.now().saturating_sub(since))
    }

    /// Records a request until the returned guard is dropped.
    pub fn request(self: &Arc<Self>) -> Open {
        self.requests.fetch_add(1, Relaxed);
        Open(Arc::clone(self))
    }
}

/// A request that is not answered completely.
pub struct Open(Arc<Connection>);

impl Drop for Open {
    fn drop(&mut self) {
        // A write that is stalled stays so; a connection that was idle meanwhile has waited only since now.
        if self.0.since.load(Relaxed) != NEVER {
            self.0.since.store(self.0.now(), Relaxed);
        }
        self.0.requests.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn peer(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    fn has_waited(connection: &Connection) {
        assert!(connection.started.elapsed().as_millis() as u64 >= WAITED);
        connection.since.store(0, Relaxed);
    }

    fn connections() -> Connections {
        Connections {
            open: Mutex::default(),
            started: Instant::now() - std::time::Duration::from_secs(60),
        }
    }

    #[test]
    fn a_peer_has_a_share_and_others_still_connect() {
        let all = connections();
        let own: Vec<_> = std::iter::from_fn(|| all.admit(peer(1))).collect();
        assert_eq!(own.len(), MOST_OF_PEER);
        assert!(all.admit(peer(2)).is_some());
        all.remove(&own[3]);
        assert!(all.admit(peer(1)).is_some());
        assert!(all.admit(peer(1)).is_none());
        let loopback = || all.admit(Ipv4Addr::LOCALHOST.into());
        assert_eq!(std::iter::from_fn(loopback).count(), MOST_OF_LOOPBACK);
    }

    #[test]
    fn a_full_share_ends_what_waits_for_its_peer_and_nothing_that_works() {
        let all = connections();
        let own: Vec<_> = std::iter::from_fn(|| all.admit(peer(1))).collect();
        let works: Vec<_> = own.iter().map(|connection| connection.request()).collect();
        own.iter().for_each(|connection| has_waited(connection));
        assert!(all.admit(peer(1)).is_none());
        own[7].set_waits(true);
        assert!(all.admit(peer(1)).is_some());
        assert!(!all.open().iter().any(|other| Arc::ptr_eq(other, &own[7])));
        drop(works);
        // An answered request counts as activity.
        assert!(all.admit(peer(1)).is_none());
    }

    #[test]
    fn an_ipv6_network_is_one_peer() {
        let address = |last| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 2, 3, 4, last));
        assert_eq!(network(address(1)), network(address(2)));
        let mapped = Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped();
        assert_eq!(network(mapped.into()), peer(1));
    }
}
