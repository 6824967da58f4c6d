"""The SQL, one statement for each call of the store."""

from __future__ import annotations

from dataclasses import dataclass, fields

from nanoloop.session.seen import SEEN_LIMIT

_MADE = """
WITH mine AS (
    INSERT INTO {schema}.session
        (id, rev, token, head, window_start, updated_at, expires_at, size, heard)
    VALUES ($1, $2::bigint + 1, $3, $4, $5, $6, $7, $8, $9)
    ON CONFLICT (id) DO NOTHING
    RETURNING number, heard
),"""
_ADVANCED = """
WITH mine AS (
    UPDATE {schema}.session
    SET rev = $2::bigint + 1, token = $3, head = $4, window_start = $5, updated_at = $6,
        expires_at = $7, size = size + $8::bigint, heard = heard + $9::bigint
    WHERE id = $1 AND rev = $2 AND (expires_at IS NULL OR expires_at >= $16)
    RETURNING number, heard
),"""
_CONTENTS = """
named AS (
    INSERT INTO {schema}.section (session, name, value)
    SELECT mine.number, new.name, new.value
    FROM mine, unnest($10::text[], $11::jsonb[]) AS new (name, value)
    ON CONFLICT (session, name) DO UPDATE SET value = excluded.value
),
added AS (
    INSERT INTO {schema}.entry (session, seq, heard, message_id, content)
    SELECT mine.number, new.seq, mine.heard - new.before_last, new.message_id, new.content
    FROM mine, unnest($12::bigint[], $13::bigint[], $14::text[], $15::jsonb[])
        AS new (seq, before_last, message_id, content)
)
SELECT number FROM mine
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """Each with the schema's name in it."""

    delete_over: str = "DELETE FROM {schema}.session WHERE id = $1 AND rev = $2"
    insert: str = f"{_MADE}{_CONTENTS}"
    commit: str = f"{_ADVANCED}{_CONTENTS}"
    """Both give None where it was not ours to write, and wrote nothing then."""
    rewrite: str = """
UPDATE {schema}.entry SET content = new.content
FROM unnest($2::bigint[], $3::jsonb[]) AS new (seq, content)
WHERE session = (SELECT number FROM {schema}.session WHERE id = $1) AND entry.seq = new.seq
"""
    stands: str = """
SELECT rev, token = $2 AS is_mine FROM {schema}.session
WHERE id = $1 AND (expires_at IS NULL OR expires_at >= $3)
"""
    head: str = "SELECT head FROM {schema}.session WHERE id = $1"
    window: str = """
SELECT head, size, parts.names, parts.values, shown.seqs, shown.contents, seen.seqs AS seen_seqs,
    seen.ids AS seen_ids
FROM {schema}.session,
LATERAL (
    SELECT array_agg(name) AS names, array_agg(value) AS values
    FROM {schema}.section WHERE session = number
) AS parts,
LATERAL (
    SELECT array_agg(seq) AS seqs, array_agg(content) AS contents
    FROM (
        SELECT seq, content FROM {schema}.entry
        WHERE session = number AND seq >= coalesce($2, window_start) ORDER BY seq
    ) AS newest
) AS shown,
LATERAL (
    SELECT array_agg(seq ORDER BY seq) AS seqs, array_agg(message_id ORDER BY seq) AS ids
    FROM {schema}.entry
    WHERE entry.session = number AND entry.heard > session.heard - {seen_limit}
) AS seen
WHERE id = $1
"""
    """Flat: both ranges of entries are bounded by themselves, however the server plans to read."""
    between: str = """
SELECT seq, content FROM {schema}.entry
WHERE session = (SELECT number FROM {schema}.session WHERE id = $1)
    AND seq > $2 AND seq <= $3
ORDER BY seq LIMIT $4
"""
    delete: str = "DELETE FROM {schema}.session WHERE id = $1"
    delete_expired: str = """
WITH gone AS (
    DELETE FROM {schema}.session WHERE number IN (
        SELECT number FROM {schema}.session WHERE expires_at < $1
        ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED
    ) RETURNING number
)
SELECT count(*) FROM gone
"""
    newest: str = """
SELECT number FROM {schema}.session
WHERE (expires_at IS NULL OR expires_at >= $1) ORDER BY updated_at DESC, number
"""
    names: str = "SELECT id FROM {schema}.session ORDER BY number"
    glances: str = """
SELECT id, head, size, value
FROM unnest($2::bigint[]) WITH ORDINALITY AS page (number, place)
JOIN {schema}.session USING (number)
LEFT JOIN {schema}.section ON section.session = number AND section.name = $3
WHERE (expires_at IS NULL OR expires_at >= $1)
ORDER BY place
"""
    bind: str = """
INSERT INTO {schema}.binding (digest, key, session) VALUES ($1, $2, $3)
ON CONFLICT (digest) DO UPDATE SET session = excluded.session
"""
    bound: str = "SELECT session FROM {schema}.binding WHERE digest = $1"
    bindings: str = """
SELECT digest, key, session FROM {schema}.binding WHERE digest > $1 ORDER BY digest LIMIT $2
"""

    @classmethod
    def of(cls, schema: str) -> Statements:
        """All of them, for the tables in this schema."""
        texts = {field.name: str(field.default) for field in fields(cls)}
        bounds = {"schema": schema, "seen_limit": SEEN_LIMIT}
        return cls(**{name: text.format(**bounds) for name, text in texts.items()})
