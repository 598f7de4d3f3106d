//! The reference: a tree in plain maps, bytes in plain vectors, the rules of Linux said as plainly as possible.

use std::collections::{BTreeMap, BTreeSet};

use pando_types::attr::{MODE_SETGID, MODE_SETUID};
use pando_types::command::{
    AttrChange, Commit, CommitContent, Create, FileCommit, NewNode, Rename, RenameMode, SetTime, XattrMode,
};
use pando_types::{
    Attr, Command, Errno, FileKind, FileName, InodeId, Reply, SegmentId, SessionId, Timestamp, XattrName,
};

/// One byte of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    Zero,
    Inline(u8),
    Stored(SegmentId, u64),
}

#[derive(Debug, Clone)]
pub struct Node {
    pub kind: FileKind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub parent: InodeId,
    pub links: BTreeSet<(InodeId, FileName)>,
    pub entries: BTreeMap<FileName, InodeId>,
    pub data: Vec<Cell>,
    pub target: Vec<u8>,
    pub xattrs: BTreeMap<XattrName, Vec<u8>>,
    /// Who keeps it after its last name went; the leader: nobody.
    pub holder: Option<SessionId>,
    /// The version that was last compared, and whether content has changed since.
    pub version: u64,
    pub changed: bool,
}

#[derive(Default)]
pub struct Model {
    pub now: Timestamp,
    pub nodes: BTreeMap<InodeId, Node>,
    pub sessions: BTreeMap<SessionId, ()>,
    pub segments: BTreeSet<SegmentId>,
    pub last_session: u64,
    pub map_epoch: u64,
}

type Result<T> = std::result::Result<T, Errno>;

impl Model {
    pub fn begin_entry(&mut self, time: Timestamp) {
        self.now = if self.nodes.is_empty() { time } else { self.now.max(time) };
        if self.nodes.is_empty() {
            let root = Node { mode: 0o755, parent: InodeId::ROOT, ..self.new_node(FileKind::Directory) };
            self.nodes.insert(InodeId::ROOT, root);
        }
    }

    fn new_node(&self, kind: FileKind) -> Node {
        Node {
            kind,
            mode: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            parent: InodeId(0),
            links: BTreeSet::new(),
            entries: BTreeMap::new(),
            data: Vec::new(),
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            holder: None,
            version: 0,
            changed: true,
        }
    }

    pub fn nlink(&self, node: &Node) -> u32 {
        let is_dir = |id: &&InodeId| self.nodes[id].kind == FileKind::Directory;
        match node.kind {
            FileKind::Directory => 2 + node.entries.values().filter(is_dir).count() as u32,
            _ => node.links.len() as u32,
        }
    }

    pub fn size(node: &Node) -> u64 {
        (node.entries.len() + node.data.len() + node.target.len()) as u64
    }

    /// Segments that were committed and have no byte left in any file.
    pub fn dead(&self) -> BTreeSet<SegmentId> {
        let mut dead = self.segments.clone();
        for cell in self.nodes.values().flat_map(|node| &node.data) {
            if let Cell::Stored(segment, _) = cell {
                dead.remove(segment);
            }
        }
        dead
    }

    pub fn free_orphans(&self) -> BTreeSet<InodeId> {
        let free = |node: &Node| node.holder.is_some_and(|holder| !self.sessions.contains_key(&holder));
        self.nodes.iter().filter(|(_, node)| free(node)).map(|(id, _)| *id).collect()
    }

    /// Attributes that differ from the model's.
    pub fn attr_differs(&self, attr: &Attr) -> Option<String> {
        let Some(node) = self.nodes.get(&attr.inode) else {
            return Some(format!("inode {} should not exist", attr.inode));
        };
        let expected = Attr {
            inode: attr.inode,
            kind: node.kind,
            mode: node.mode,
            nlink: self.nlink(node),
            uid: node.uid,
            gid: node.gid,
            rdev: node.rdev,
            size: Model::size(node),
            allocated: attr.allocated,
            atime: node.atime,
            mtime: node.mtime,
            ctime: node.ctime,
            version: attr.version,
        };
        (expected != *attr).then(|| format!("expected {expected:?}, found {attr:?}"))
    }

    /// Carries the command out here too, and says how the reply differs from what it must be.
    pub fn check(&mut self, session: SessionId, command: &Command, reply: &Reply) -> std::result::Result<(), String> {
        if session != SessionId::LEADER
            && !self.sessions.contains_key(&session)
            && !matches!(command, Command::CloseSession { .. })
        {
            return equal(&Reply::Stale, reply);
        }
        let expected = match self.apply(session, command, reply) {
            Err(errno) => Reply::Refused(errno),
            Ok(expected) => expected,
        };
        let strip = |reply: &Reply| match reply {
            Reply::Inode(attr) => Reply::Inode(Attr { inode: attr.inode, ..self.blank() }),
            Reply::Committed(results) => {
                let results =
                    results.iter().map(|result| result.as_ref().map(|attr| Attr { inode: attr.inode, ..self.blank() }));
                Reply::Committed(results.map(|result| result.map_err(|errno| *errno)).collect())
            }
            other => other.clone(),
        };
        equal(&strip(&expected), &strip(reply))?;
        let attrs: Vec<&Attr> = match reply {
            Reply::Inode(attr) => vec![attr],
            Reply::Committed(results) => results.iter().flatten().collect(),
            _ => vec![],
        };
        attrs.into_iter().find_map(|attr| self.attr_differs(attr)).map_or(Ok(()), Err)
    }

    fn blank(&self) -> Attr {
        Attr {
            inode: InodeId(0),
            kind: FileKind::File,
            mode: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            allocated: 0,
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            version: 0,
        }
    }

    fn inode(&self, inode: InodeId) -> Result<Reply> {
        Ok(Reply::Inode(Attr { inode, ..self.blank() }))
    }

    fn apply(&mut self, session: SessionId, command: &Command, reply: &Reply) -> Result<Reply> {
        match command {
            Command::OpenSession => {
                self.last_session += 1;
                self.sessions.insert(SessionId(self.last_session), ());
                Ok(Reply::Session(SessionId(self.last_session)))
            }
            Command::CloseSession { session } => {
                self.sessions.remove(session);
                Ok(Reply::Done)
            }
            Command::Create(create) => self.create(create, reply),
            Command::Unlink { parent, name, unheld } => self.unlink(session, *parent, name, *unheld),
            Command::Rmdir { parent, name } => self.rmdir(*parent, name),
            Command::Rename(rename) => self.rename(session, rename),
            Command::Link { inode, parent, name } => self.link(*inode, *parent, name),
            Command::SetAttr { inode, change, size } => self.setattr(*inode, change, *size),
            Command::Commit(commit) => self.commit(commit),
            Command::SetXattr { inode, name, value, mode } => self.setxattr(*inode, name, value, *mode),
            Command::RemoveXattr { inode, name } => {
                let now = self.now;
                let node = self.nodes.get_mut(inode).ok_or(Errno::ENOENT)?;
                may_change_xattr(node, name)?;
                node.xattrs.remove(name).ok_or(Errno::ENODATA)?;
                node.ctime = now;
                Ok(Reply::Done)
            }
            Command::ReleaseOrphans { inodes } => {
                for id in inodes {
                    if self.nodes.get(id).is_some_and(|node| node.holder == Some(session)) {
                        self.bury(*id, SessionId::LEADER);
                    }
                }
                Ok(Reply::Done)
            }
            Command::Reclaim { inodes } => {
                let free = self.free_orphans();
                inodes.iter().filter(|id| free.contains(id)).for_each(|id| drop(self.nodes.remove(id)));
                let orphan = |id: &&InodeId| self.nodes.get(id).is_some_and(|node| node.holder.is_some());
                let kept = inodes.iter().filter(orphan).count();
                Ok(Reply::Reclaimed { inodes: (inodes.len() - kept) as u64 })
            }
            Command::SetShardMap(map) if map.epoch.0 == self.map_epoch + 1 => {
                self.map_epoch += 1;
                Ok(Reply::Done)
            }
            Command::SetShardMap(_) => Err(Errno::EAGAIN),
            Command::JoinSession { .. }
            | Command::Prepare { .. }
            | Command::Decide(_)
            | Command::Finish { .. }
            | Command::Abort { .. }
            | Command::Forget { .. }
            | Command::Split { .. } => unreachable!("the file system is the same in however many shards"),
            Command::ForgetSegments { segments } => {
                let dead = self.dead();
                self.segments.retain(|id| !(dead.contains(id) && segments.contains(id)));
                Ok(Reply::Done)
            }
        }
    }

    fn directory(&self, id: InodeId) -> Result<&Node> {
        let node = self.nodes.get(&id).ok_or(Errno::ENOENT)?;
        if node.kind == FileKind::Directory { Ok(node) } else { Err(Errno::ENOTDIR) }
    }

    fn is_dir(&self, id: InodeId) -> bool {
        self.nodes[&id].kind == FileKind::Directory
    }

    fn node(&mut self, id: InodeId) -> &mut Node {
        self.nodes.get_mut(&id).unwrap()
    }

    /// A name comes, goes or changes; the directory's times with it.
    fn set_entry(&mut self, parent: InodeId, name: &FileName, child: Option<InodeId>) {
        let now = self.now;
        let directory = self.node(parent);
        directory.entries.remove(name);
        directory.entries.extend(child.map(|child| (name.clone(), child)));
        (directory.mtime, directory.ctime, directory.changed) = (now, now, true);
    }

    fn create(&mut self, create: &Create, reply: &Reply) -> Result<Reply> {
        let parent = self.directory(create.parent)?.clone();
        if parent.entries.contains_key(&create.name) {
            return Err(Errno::EEXIST);
        }
        // The one thing that is taken from the reply: which id was given.
        let id = match reply {
            Reply::Inode(attr) if !self.nodes.contains_key(&attr.inode) => attr.inode,
            _ => InodeId(0),
        };
        let mut node = self.new_node(create.node.kind());
        node.mode = if node.kind == FileKind::Symlink { 0o777 } else { create.mode & !create.umask };
        (node.uid, node.gid, node.parent) = (create.uid, create.gid, create.parent);
        if parent.mode & MODE_SETGID != 0 {
            node.gid = parent.gid;
            node.mode |= if node.kind == FileKind::Directory { MODE_SETGID } else { 0 };
        }
        match &create.node {
            NewNode::Symlink { target } => node.target.clone_from(target),
            NewNode::CharDevice { rdev } | NewNode::BlockDevice { rdev } => node.rdev = *rdev,
            _ => {}
        }
        node.links.insert((create.parent, create.name.clone()));
        self.nodes.insert(id, node);
        self.set_entry(create.parent, &create.name, Some(id));
        self.inode(id)
    }

    fn unlink(
        &mut self,
        session: SessionId,
        parent: InodeId,
        name: &FileName,
        unheld: Option<InodeId>,
    ) -> Result<Reply> {
        let inode = *self.directory(parent)?.entries.get(name).ok_or(Errno::ENOENT)?;
        if self.is_dir(inode) {
            return Err(Errno::EISDIR);
        }
        self.set_entry(parent, name, None);
        let held = self.drop_link(inode, parent, name, session, unheld);
        Ok(Reply::Unlinked { inode, held })
    }

    fn drop_link(
        &mut self,
        id: InodeId,
        parent: InodeId,
        name: &FileName,
        session: SessionId,
        unheld: Option<InodeId>,
    ) -> bool {
        let now = self.now;
        let node = self.node(id);
        node.ctime = now;
        node.links.remove(&(parent, name.clone()));
        if !node.links.is_empty() {
            return false;
        }
        let holder = if unheld == Some(id) { SessionId::LEADER } else { session };
        self.bury(id, holder);
        holder != SessionId::LEADER
    }

    fn bury(&mut self, id: InodeId, holder: SessionId) {
        let node = self.node(id);
        node.holder = Some(holder);
        let stored = node.data.iter().any(|cell| matches!(cell, Cell::Stored(..)));
        if holder == SessionId::LEADER && !stored && node.xattrs.is_empty() {
            self.nodes.remove(&id);
        }
    }

    fn rmdir(&mut self, parent: InodeId, name: &FileName) -> Result<Reply> {
        let id = *self.directory(parent)?.entries.get(name).ok_or(Errno::ENOENT)?;
        if !self.is_dir(id) {
            return Err(Errno::ENOTDIR);
        }
        if !self.nodes[&id].entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.set_entry(parent, name, None);
        self.nodes.remove(&id);
        Ok(Reply::Done)
    }

    fn within(&self, mut id: InodeId, above: InodeId) -> bool {
        while id != above && id != InodeId::ROOT {
            id = self.nodes[&id].parent;
        }
        id == above
    }

    fn rename(&mut self, session: SessionId, r: &Rename) -> Result<Reply> {
        self.directory(r.parent)?;
        self.directory(r.new_parent)?;
        let inode = *self.nodes[&r.parent].entries.get(&r.name).ok_or(Errno::ENOENT)?;
        let target = self.nodes[&r.new_parent].entries.get(&r.new_name).copied();
        let exchange = r.mode == RenameMode::Exchange;
        match target {
            Some(_) if r.mode == RenameMode::NoReplace => return Err(Errno::EEXIST),
            None if exchange => return Err(Errno::ENOENT),
            _ => {}
        }
        if self.is_dir(inode) && self.within(r.new_parent, inode) {
            return Err(Errno::EINVAL);
        }
        if target.is_some_and(|target| self.is_dir(target) && self.within(r.parent, target)) {
            return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        if target == Some(inode) {
            return Ok(Reply::Renamed { inode, replaced: target.filter(|_| exchange), held: false });
        }
        if let Some(target) = target.filter(|_| !exchange) {
            match (self.is_dir(inode), self.is_dir(target)) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) if !self.nodes[&target].entries.is_empty() => return Err(Errno::ENOTEMPTY),
                _ => {}
            }
        }
        self.set_entry(r.parent, &r.name, target.filter(|_| exchange));
        self.set_entry(r.new_parent, &r.new_name, Some(inode));
        self.moved(inode, (r.parent, &r.name), (r.new_parent, &r.new_name));
        let mut held = false;
        match target {
            Some(target) if exchange => self.moved(target, (r.new_parent, &r.new_name), (r.parent, &r.name)),
            Some(target) if self.is_dir(target) => drop(self.nodes.remove(&target)),
            Some(target) => held = self.drop_link(target, r.new_parent, &r.new_name, session, r.unheld),
            None => {}
        }
        Ok(Reply::Renamed { inode, replaced: target, held })
    }

    fn moved(&mut self, id: InodeId, from: (InodeId, &FileName), to: (InodeId, &FileName)) {
        let now = self.now;
        let node = self.node(id);
        node.links.remove(&(from.0, from.1.clone()));
        node.links.insert((to.0, to.1.clone()));
        (node.parent, node.ctime) = (to.0, now);
    }

    fn link(&mut self, id: InodeId, parent: InodeId, name: &FileName) -> Result<Reply> {
        let kind = self.nodes.get(&id).ok_or(Errno::ENOENT)?.kind;
        if self.directory(parent)?.entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        if kind == FileKind::Directory {
            return Err(Errno::EPERM);
        }
        if self.nodes[&id].links.is_empty() {
            return Err(Errno::ENOENT);
        }
        self.set_entry(parent, name, Some(id));
        let now = self.now;
        let node = self.node(id);
        node.links.insert((parent, name.clone()));
        node.ctime = now;
        self.inode(id)
    }

    fn setattr(&mut self, id: InodeId, change: &AttrChange, size: Option<u64>) -> Result<Reply> {
        let now = self.now;
        let node = self.nodes.get_mut(&id).ok_or(Errno::ENOENT)?;
        match (size, node.kind) {
            (None, _) | (Some(_), FileKind::File) => {}
            (Some(_), FileKind::Directory) => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        if node.kind == FileKind::Symlink && change.mode.is_some() {
            return Err(Errno::EOPNOTSUPP);
        }
        if let Some(size) = size {
            node.changed |= size != node.data.len() as u64;
            node.data.resize(size as usize, Cell::Zero);
            node.xattrs.remove(&capability());
            (node.mtime, node.ctime) = (now, now);
        }
        change_attributes(node, change, now);
        self.inode(id)
    }

    fn commit(&mut self, commit: &Commit) -> Result<Reply> {
        self.segments.extend(commit.segments.iter().map(|segment| segment.id));
        let results = commit.files.iter().map(|file| self.commit_file(file)).collect();
        Ok(Reply::Committed(results))
    }

    fn commit_file(&mut self, file: &FileCommit) -> Result<Attr> {
        let now = self.now;
        let blank = self.blank();
        let node = self.nodes.get_mut(&file.inode).ok_or(Errno::ENOENT)?;
        match node.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        let old = node.data.len();
        let data = &mut node.data;
        data.truncate(file.cut.unwrap_or(u64::MAX) as usize);
        let mut changed = file.cut.is_some();
        for range in &file.punch {
            changed = true;
            data.iter_mut().skip(range.offset as usize).take(range.length as usize).for_each(|cell| *cell = Cell::Zero);
        }
        match &file.content {
            CommitContent::Inline(bytes) => {
                changed = true;
                *data = bytes.iter().map(|byte| Cell::Inline(*byte)).collect();
            }
            CommitContent::Extents(extents) => {
                for extent in extents {
                    changed = true;
                    let end = extent.end() as usize;
                    data.resize(data.len().max(end), Cell::Zero);
                    for at in 0..extent.length {
                        data[(extent.offset + at) as usize] = Cell::Stored(extent.segment, extent.segment_offset + at);
                    }
                }
            }
        }
        data.resize(data.len().max(file.size as usize), Cell::Zero);
        changed |= data.len() != old;
        node.changed |= changed;
        if changed {
            node.xattrs.remove(&capability());
            (node.mtime, node.ctime) = (now, now);
        }
        change_attributes(node, &file.change, now);
        Ok(Attr { inode: file.inode, ..blank })
    }

    fn setxattr(&mut self, id: InodeId, name: &XattrName, value: &[u8], mode: XattrMode) -> Result<Reply> {
        let now = self.now;
        let node = self.nodes.get_mut(&id).ok_or(Errno::ENOENT)?;
        may_change_xattr(node, name)?;
        match (mode, node.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Errno::EEXIST),
            (XattrMode::Replace, false) => return Err(Errno::ENODATA),
            _ => {}
        }
        node.xattrs.insert(name.clone(), value.to_vec());
        node.ctime = now;
        Ok(Reply::Done)
    }
}

fn change_attributes(node: &mut Node, change: &AttrChange, now: Timestamp) {
    let chown = change.uid.is_some() || change.gid.is_some();
    let mut mode = node.mode;
    let kills = match node.kind {
        FileKind::File => chown || change.kill_privileges,
        FileKind::Directory => false,
        _ => chown,
    };
    if kills {
        mode &= !MODE_SETUID;
        if mode & 0o010 != 0 {
            mode &= !MODE_SETGID;
        }
        if node.xattrs.remove(&capability()).is_some() {
            node.ctime = now;
        }
    }
    mode = change.mode.unwrap_or(mode);
    if chown || change.mode.is_some() || change.atime.is_some() || change.mtime.is_some() || mode != node.mode {
        node.ctime = now;
    }
    node.mode = mode;
    node.uid = change.uid.unwrap_or(node.uid);
    node.gid = change.gid.unwrap_or(node.gid);
    for (time, set) in [(&mut node.atime, change.atime), (&mut node.mtime, change.mtime)] {
        match set {
            None => {}
            Some(SetTime::Now) => *time = now,
            Some(SetTime::At(at)) => *time = at,
        }
    }
}

/// What a change of content or owner takes from a file.
fn capability() -> XattrName {
    XattrName::new(b"security.capability").unwrap()
}

fn may_change_xattr(node: &Node, name: &XattrName) -> Result<()> {
    let takes_user = matches!(node.kind, FileKind::File | FileKind::Directory);
    if name.as_bytes().starts_with(b"user.") && !takes_user { Err(Errno::EPERM) } else { Ok(()) }
}

fn equal(expected: &Reply, found: &Reply) -> std::result::Result<(), String> {
    if expected == found { Ok(()) } else { Err(format!("expected {expected:?}, found {found:?}")) }
}
