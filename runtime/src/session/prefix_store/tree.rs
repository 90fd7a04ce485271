//! The checkpoints in memory: a tree by descent, with search and eviction.

use std::sync::Arc;

use super::PrefixStoreStats;
use crate::state::Identity;

/// The model and layout that a session needs to restore a checkpoint.
#[derive(Clone)]
pub struct Key {
    /// The model.
    pub model: Arc<Identity>,
    /// The owner of the session, who shares no checkpoint with others.
    pub owner: u64,
    /// A hash of the shapes of its state tensors without the context.
    pub shape: u32,
}

impl Key {
    /// The model's label combined with the owner, for the names of files.
    pub fn label(&self) -> u64 {
        self.model.label() ^ self.owner
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        let is_alike = (self.shape, self.owner) == (other.shape, other.owner);
        is_alike && self.model.is_same(&other.model)
    }
}

/// A reference to a checkpoint, which may have been removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    index: usize,
    /// Distinguishes successive nodes with the same index.
    born: u64,
    /// Number of tokens from the beginning.
    pub position: u64,
}

/// Copies of the state tensors that each token overwrites, and the logits if known.
pub struct Present {
    pub state: Vec<u8>,
    pub logits: Vec<f32>,
}

/// A checkpoint as created by a session.
pub struct Checkpoint {
    /// The tokens since its parent.
    pub tokens: Vec<u32>,
    /// The rows that these tokens wrote.
    pub rows: Vec<u8>,
    pub present: Present,
    pub grid: u64,
}

impl Checkpoint {
    /// The accounted size of a checkpoint with parts of these sizes.
    pub fn cost(tokens: usize, rows: usize, state: usize, logits: usize) -> usize {
        piece_cost(tokens, rows) + state + logits * size_of::<f32>()
    }
}

fn piece_cost(tokens: usize, rows: usize) -> usize {
    // The node with its lists, plus allocator overhead.
    size_of::<Node>() + 256 + tokens * size_of::<u32>() + rows
}

/// A checkpoint in the tree. A node whose `present` was evicted only holds rows for its descendants.
pub struct Node {
    pub key: Key,
    parent: Option<usize>,
    children: Vec<usize>,
    born: u64,
    used: u64,
    pub position: u64,
    pub grid: u64,
    pub tokens: Arc<Vec<u32>>,
    pub rows: Arc<Vec<u8>>,
    pub present: Option<Arc<Present>>,
    /// The file that holds this checkpoint, or will hold it once written.
    pub file: Option<u64>,
    /// Whether its numbers are known to be valid: those of a session are, those of a file are checked on first use.
    pub checked: bool,
    /// Number of files with this node that are being written.
    pins: u32,
}

impl Node {
    fn present_bytes(&self) -> usize {
        let present = self.present.as_ref();
        present.map_or(0, |p| p.state.len() + p.logits.len() * size_of::<f32>())
    }

    fn bytes(&self) -> usize {
        piece_cost(self.tokens.len(), self.rows.len()) + self.present_bytes()
    }

    fn has_logits(&self) -> bool {
        self.present.as_ref().is_some_and(|p| !p.logits.is_empty())
    }
}

/// All checkpoints in memory.
pub struct Tree {
    nodes: Vec<Option<Node>>,
    /// Nodes without a parent.
    roots: Vec<usize>,
    /// Bytes of all nodes and of checkpoints that are being copied.
    bytes: usize,
    most: usize,
    clock: u64,
    evicted: u64,
    reused: u64,
    read: u64,
}

impl Tree {
    pub fn new(most: usize) -> Self {
        Tree {
            nodes: Vec::new(),
            roots: Vec::new(),
            bytes: 0,
            most,
            clock: 0,
            evicted: 0,
            reused: 0,
            read: 0,
        }
    }

    pub fn stats(&self) -> PrefixStoreStats {
        let nodes = self.nodes.iter().flatten();
        PrefixStoreStats {
            checkpoints: nodes.filter(|node| node.present.is_some()).count(),
            bytes: self.bytes,
            evicted: self.evicted,
            reused_tokens: self.reused,
            read_tokens: self.read,
            ..PrefixStoreStats::default()
        }
    }

    /// Counts the reused and the read tokens of a history.
    pub fn count(&mut self, reused: usize, read: usize) {
        self.reused += reused as u64;
        self.read += read as u64;
    }

    /// Removes all checkpoints except those being copied.
    pub fn clear(&mut self) {
        let nodes = self.nodes.iter().flatten();
        self.bytes -= nodes.map(Node::bytes).sum::<usize>();
        self.nodes.clear();
        self.roots.clear();
    }

    /// The checkpoint at a place, if it is still there.
    pub fn get(&self, place: Place) -> Option<&Node> {
        let node = self.nodes.get(place.index)?.as_ref()?;
        (node.born == place.born).then_some(node)
    }

    fn get_mut(&mut self, place: Place) -> Option<&mut Node> {
        let node = self.nodes.get_mut(place.index)?.as_mut()?;
        (node.born == place.born).then_some(node)
    }

    fn node(&self, index: usize) -> &Node {
        self.nodes[index].as_ref().expect("links lead to nodes")
    }

    fn place(&self, index: usize) -> Place {
        let node = self.node(index);
        Place {
            index,
            born: node.born,
            position: node.position,
        }
    }

    /// Finds the deepest checkpoint, at most at `most`, whose tokens are a prefix of `tokens`. One at their end must have logits.
    pub fn find(&mut self, key: &Key, tokens: &[u32], most: u64) -> Option<Place> {
        let mut best: Option<usize> = None;
        let roots = self.roots.iter();
        let mut open: Vec<usize> = roots
            .copied()
            .filter(|&root| self.node(root).key == *key)
            .collect();
        while let Some(index) = open.pop() {
            let node = self.node(index);
            let start = node.position as usize - node.tokens.len();
            let rest = tokens.get(start..).unwrap_or_default();
            if node.position > most || !rest.starts_with(&node.tokens) {
                continue;
            }
            let is_whole = node.position < tokens.len() as u64 || node.has_logits();
            let is_deeper = best.is_none_or(|best| node.position > self.node(best).position);
            if node.present.is_some() && is_whole && is_deeper {
                best = Some(index);
            }
            open.extend(&node.children);
        }
        let best = best?;
        self.touch(best);
        Some(self.place(best))
    }

    fn touch(&mut self, index: usize) {
        self.clock += 1;
        if let Some(node) = &mut self.nodes[index] {
            node.used = self.clock;
        }
    }

    /// The checkpoints from the root to `place`; `None` if it is gone.
    pub fn path(&self, place: Place) -> Option<Vec<Place>> {
        self.get(place)?;
        let mut path = vec![place.index];
        while let Some(parent) = self.node(path[path.len() - 1]).parent {
            path.push(parent);
        }
        Some(path.iter().rev().map(|&index| self.place(index)).collect())
    }

    /// Finds the child of `parent` with these tokens. If `logits` is set, the child must have logits.
    pub fn holds(
        &mut self,
        key: &Key,
        parent: Option<Place>,
        tokens: &[u32],
        logits: bool,
    ) -> Option<Place> {
        let siblings = match parent {
            Some(parent) => &self.get(parent)?.children,
            None => &self.roots,
        };
        let same = siblings.iter().copied().find(|&index| {
            let node = self.node(index);
            let is_whole = node.present.is_some() && (node.has_logits() || !logits);
            is_whole && *node.tokens == tokens && node.key == *key
        })?;
        self.touch(same);
        Some(self.place(same))
    }

    /// Finds the child of `parent` with these tokens and this grid, even if its state was evicted.
    pub fn piece(
        &self,
        key: &Key,
        parent: Option<Place>,
        tokens: &[u32],
        grid: u64,
    ) -> Option<Place> {
        let siblings = match parent {
            Some(parent) => &self.get(parent)?.children,
            None => &self.roots,
        };
        let is_same = |index: &usize| {
            let node = self.node(*index);
            node.grid == grid && *node.tokens == tokens && node.key == *key
        };
        let same = siblings.iter().copied().find(is_same)?;
        Some(self.place(same))
    }

    /// The byte limit of all checkpoints together.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Makes room for `bytes` and counts them as used; false if that is impossible. The checkpoint at `keep` stays.
    pub fn reserve(&mut self, bytes: usize, keep: Option<Place>) -> bool {
        let Some(goal) = self.most.checked_sub(bytes) else {
            return false;
        };
        let keep = keep.filter(|&keep| self.get(keep).is_some());
        while self.bytes > goal {
            if !self.evict(keep.map(|keep| keep.index)) {
                return false;
            }
        }
        self.bytes += bytes;
        true
    }

    /// Releases reserved bytes.
    pub fn release(&mut self, bytes: usize) {
        self.bytes -= bytes;
    }

    /// Adds a checkpoint after `parent`, whose bytes are reserved. If the parent is gone, releases the bytes and returns `None`.
    pub fn insert(
        &mut self,
        key: Key,
        parent: Option<Place>,
        checkpoint: Checkpoint,
    ) -> Option<Place> {
        let Checkpoint {
            tokens,
            rows,
            present,
            grid,
        } = checkpoint;
        let reserved = Checkpoint::cost(
            tokens.len(),
            rows.len(),
            present.state.len(),
            present.logits.len(),
        );
        let piece = Piece {
            tokens: Arc::new(tokens),
            rows: Arc::new(rows),
            present: Some(Arc::new(present)),
            grid,
            file: None,
            checked: true,
        };
        let place = self.add(key, parent, piece);
        if place.is_none() {
            self.release(reserved);
        }
        place
    }

    /// Adds a node whose bytes are already counted; `None` if the parent is gone.
    pub fn add(&mut self, key: Key, parent: Option<Place>, piece: Piece) -> Option<Place> {
        let before = match parent {
            Some(parent) => self.get(parent)?.position,
            None => 0,
        };
        self.clock += 1;
        let node = Node {
            key,
            parent: parent.map(|parent| parent.index),
            children: Vec::new(),
            born: self.clock,
            used: self.clock,
            position: before + piece.tokens.len() as u64,
            grid: piece.grid,
            tokens: piece.tokens,
            rows: piece.rows,
            present: piece.present,
            file: piece.file,
            checked: piece.checked,
            pins: 0,
        };
        let free = self.nodes.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() - 1
        });
        self.nodes[index] = Some(node);
        match parent.and_then(|parent| self.get_mut(parent)) {
            Some(parent) => parent.children.push(index),
            None => self.roots.push(index),
        }
        Some(self.place(index))
    }

    /// Finds the checkpoint of a file. Also returns whether it can be restored.
    pub fn file(&self, id: u64) -> Option<(Place, bool)> {
        let has = |node: &Node| node.file == Some(id);
        let index = self
            .nodes
            .iter()
            .position(|node| node.as_ref().is_some_and(has))?;
        Some((self.place(index), self.node(index).present.is_some()))
    }

    /// Gives an evicted node its `present` back, whose bytes are reserved; `None` if the node is gone.
    pub fn refill(
        &mut self,
        place: Place,
        present: Option<Arc<Present>>,
        bytes: usize,
    ) -> Option<Place> {
        match self.get_mut(place).filter(|node| node.present.is_none()) {
            Some(node) => (node.present, node.checked) = (present, false),
            None => self.release(bytes),
        }
        self.get(place).map(|_| place)
    }

    /// Marks these checkpoints as checked.
    pub fn check(&mut self, places: &[Place]) {
        for &place in places {
            if let Some(node) = self.get_mut(place) {
                node.checked = true;
            }
        }
    }

    /// Discards a checkpoint that cannot be used.
    pub fn discard(&mut self, place: Place) {
        if let Some(node) = self.get_mut(place) {
            let bytes = node.present_bytes();
            node.present = None;
            self.bytes -= bytes;
            self.remove_unused(place.index, None);
        }
    }

    /// Pins the nodes of a file in memory while it is written; the last one is the file's checkpoint.
    pub fn pin(&mut self, places: &[Place], file: u64) {
        for &place in places {
            if let Some(node) = self.get_mut(place) {
                node.pins += 1;
            }
        }
        let last = places.last().and_then(|&last| self.get_mut(last));
        if let Some(node) = last {
            node.file = Some(file);
        }
    }

    /// Unpins the nodes of a file after writing; `is_there` is false if writing failed.
    pub fn written(&mut self, places: &[Place], is_there: bool) {
        for (index, &place) in places.iter().enumerate() {
            if let Some(node) = self.get_mut(place) {
                node.pins -= 1;
                if index + 1 == places.len() && !is_there {
                    node.file = None;
                }
            }
        }
    }

    /// Evicts the checkpoint whose loss costs least; false if nothing can be evicted.
    fn evict(&mut self, keep: Option<usize>) -> bool {
        let indices = (0..self.nodes.len()).filter(|&index| Some(index) != keep);
        let costs = indices.filter_map(|index| Some((self.loss(index)?, index)));
        let Some((_, index)) = costs.min_by(|one, other| one.0.total_cmp(&other.0)) else {
            return false;
        };
        self.evicted += 1;
        if let Some(node) = &mut self.nodes[index] {
            self.bytes -= node.present_bytes();
            node.present = None;
        }
        self.remove_unused(index, keep);
        true
    }

    /// The cost of losing a checkpoint: tokens to read again, divided by its age and by the freed bytes; `None` if it must stay.
    fn loss(&self, index: usize) -> Option<f64> {
        let node = self.nodes[index].as_ref()?;
        let is_leaf = node.children.is_empty();
        if node.pins > 0 || node.present.is_none() && !is_leaf {
            return None;
        }
        let mut before = node.parent;
        while let Some(ancestor) = before.filter(|&index| self.node(index).present.is_none()) {
            before = self.node(ancestor).parent;
        }
        let gap = node.position - before.map_or(0, |index| self.node(index).position);
        let freed = if is_leaf {
            node.bytes()
        } else {
            node.present_bytes()
        };
        let age = self.clock - node.used + 1;
        Some(gap as f64 / age as f64 / freed as f64)
    }

    /// Removes a node that has no `present`, pins or children, and then such ancestors.
    fn remove_unused(&mut self, index: usize, keep: Option<usize>) {
        let mut next = Some(index);
        while let Some(index) = next.filter(|&index| Some(index) != keep) {
            let node = self.node(index);
            if node.present.is_some() || node.pins > 0 || !node.children.is_empty() {
                return;
            }
            let (parent, bytes) = (node.parent, node.bytes());
            self.bytes -= bytes;
            self.nodes[index] = None;
            let siblings = match parent.and_then(|parent| self.nodes[parent].as_mut()) {
                Some(parent) => &mut parent.children,
                None => &mut self.roots,
            };
            siblings.retain(|&sibling| sibling != index);
            next = parent;
        }
    }
}

/// A node's contents from a session or a file.
pub struct Piece {
    pub tokens: Arc<Vec<u32>>,
    pub rows: Arc<Vec<u8>>,
    pub present: Option<Arc<Present>>,
    pub grid: u64,
    pub file: Option<u64>,
    pub checked: bool,
}
