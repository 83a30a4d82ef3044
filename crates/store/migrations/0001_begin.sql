-- Times are microseconds since 1970 by the database's clock, lengths milliseconds, flags 0 or 1, documents JSON text.

CREATE TABLE tenants (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    created_at BIGINT NOT NULL
);

CREATE TABLE principals (
    id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL REFERENCES tenants (id),
    name TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE INDEX principals_of_tenant ON principals (tenant, id);

-- A token itself is nowhere: its hash is.
CREATE TABLE tokens (
    id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL REFERENCES tenants (id),
    principal TEXT NOT NULL REFERENCES principals (id),
    hash BYTEA NOT NULL UNIQUE,
    name TEXT NOT NULL,
    scopes TEXT NOT NULL,
    -- 'bearer', or 'login': good once, for a session.
    kind TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT,
    used_at BIGINT
);
CREATE INDEX tokens_of_tenant ON tokens (tenant, id);

-- The root row of what happens in a conversation.
CREATE TABLE conversations (
    id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL REFERENCES tenants (id),
    -- What a caller without one is known by: one conversation for each principal and client session.
    client_session TEXT,
    opened_by TEXT NOT NULL REFERENCES principals (id),
    title TEXT NOT NULL,
    -- Raised by stop-all alone.
    generation BIGINT NOT NULL,
    on_limit TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    UNIQUE (tenant, opened_by, client_session)
);
CREATE INDEX conversations_of_tenant ON conversations (tenant, id);

CREATE TABLE runs (
    id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL REFERENCES tenants (id),
    conversation TEXT NOT NULL REFERENCES conversations (id),
    principal TEXT NOT NULL REFERENCES principals (id),
    generation BIGINT NOT NULL,
    opened_at BIGINT NOT NULL,
    stopped_at BIGINT,
    closed_at BIGINT
);
CREATE INDEX runs_of_conversation ON runs (conversation, id);
-- One open run for each person.
CREATE UNIQUE INDEX runs_open ON runs (conversation, principal) WHERE closed_at IS NULL;

CREATE TABLE sandboxes (
    id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL REFERENCES tenants (id),
    name TEXT NOT NULL,
    provider TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    UNIQUE (tenant, name)
);

-- One incarnation of a sandbox, and the root row of what runs in it.
CREATE TABLE hands (
    sandbox TEXT NOT NULL REFERENCES sandboxes (id),
    generation BIGINT NOT NULL,
    tenant TEXT NOT NULL REFERENCES tenants (id),
    -- How it is reached, and by what else, as its provider says: a JSON document without secrets.
    channels TEXT NOT NULL,
    provider_ref TEXT NOT NULL,
    recorded_at BIGINT NOT NULL,
    -- As long as it may live, by its provider; nothing for ever. Only ever moved later.
    lives_until BIGINT,
    retired_at BIGINT,
    -- What its provider attests: that this very one is gone.
    destroyed TEXT,
    -- Who works on it. The token grows with each claim; every write under the lease names it.
    lease_owner TEXT,
    lease_token BIGINT NOT NULL,
    lease_until BIGINT,
    failures BIGINT NOT NULL,
    PRIMARY KEY (sandbox, generation)
);

-- The durable promise about one logical command, and the root row of what becomes of it.
CREATE TABLE tasks (
    id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL REFERENCES tenants (id),
    conversation TEXT NOT NULL REFERENCES conversations (id),
    run TEXT NOT NULL REFERENCES runs (id),
    principal TEXT NOT NULL REFERENCES principals (id),
    generation BIGINT NOT NULL,
    sandbox TEXT NOT NULL,
    sandbox_generation BIGINT NOT NULL,
    -- The call's identity, within conversation and principal.
    call_key TEXT NOT NULL,
    digest TEXT NOT NULL,
    -- The command, as a hand is asked for it; of secrets their names.
    work TEXT NOT NULL,
    mode TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    -- While its latest attempt takes one of its sandbox's places.
    occupies BIGINT NOT NULL,
    -- Until when it must be decided who brings its result; nothing once that is.
    decide_by BIGINT,
    -- Grows with each change, for who follows.
    revision BIGINT NOT NULL,
    UNIQUE (conversation, principal, call_key),
    FOREIGN KEY (sandbox, sandbox_generation) REFERENCES hands (sandbox, generation)
);
CREATE INDEX tasks_of_conversation ON tasks (conversation, id);
CREATE INDEX tasks_undecided ON tasks (decide_by) WHERE decide_by IS NOT NULL;
CREATE INDEX tasks_of_hand ON tasks (sandbox, sandbox_generation, id) WHERE occupies = 1;

-- One execution of it: a job on a hand.
CREATE TABLE attempts (
    task TEXT NOT NULL REFERENCES tasks (id),
    number BIGINT NOT NULL,
    -- What is known of it: a document, whose state is computed.
    facts TEXT NOT NULL,
    -- As of the facts. All bytes before the cursor are in the command log.
    cursor BIGINT NOT NULL,
    final_cursor BIGINT,
    PRIMARY KEY (task, number),
    CHECK (cursor >= 0 AND (final_cursor IS NULL OR cursor <= final_cursor))
);

-- The command log: records of output that tile [0, cursor).
CREATE TABLE segments (
    task TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    begins BIGINT NOT NULL,
    ends BIGINT NOT NULL,
    -- Records of stream, length and bytes: here, or in the object of this name.
    bytes BYTEA,
    object TEXT,
    object_version TEXT,
    blake3 TEXT NOT NULL,
    PRIMARY KEY (task, attempt, begins),
    FOREIGN KEY (task, attempt) REFERENCES attempts (task, number),
    CHECK (ends > begins),
    CHECK ((bytes IS NULL) <> (object IS NULL))
);

-- A fact owed to a run, until it is acknowledged or discarded.
CREATE TABLE events (
    -- Made of task, attempt and transition: the same fact has the same id.
    id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL REFERENCES tenants (id),
    conversation TEXT NOT NULL REFERENCES conversations (id),
    run TEXT NOT NULL REFERENCES runs (id),
    principal TEXT NOT NULL REFERENCES principals (id),
    task TEXT NOT NULL REFERENCES tasks (id),
    generation BIGINT NOT NULL,
    sandbox_generation BIGINT NOT NULL,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    -- When it was acknowledged or discarded.
    over_at BIGINT
);
CREATE INDEX events_pending ON events (tenant, created_at, id) WHERE over_at IS NULL;

-- A stop that was accepted or dropped, by its id: a repeated call is answered as the first time.
CREATE TABLE stops (
    id TEXT NOT NULL,
    tenant TEXT NOT NULL REFERENCES tenants (id),
    conversation TEXT NOT NULL REFERENCES conversations (id),
    principal TEXT NOT NULL REFERENCES principals (id),
    target TEXT NOT NULL,
    generation BIGINT NOT NULL,
    accepted BIGINT NOT NULL,
    -- The conversation's generation from then on.
    generation_then BIGINT NOT NULL,
    -- The tasks it hit.
    tasks TEXT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (tenant, id)
);

-- Who did what. Each entry holds the hash of the one before it.
CREATE TABLE audit (
    tenant TEXT NOT NULL REFERENCES tenants (id),
    number BIGINT NOT NULL,
    at BIGINT NOT NULL,
    principal TEXT,
    what TEXT NOT NULL,
    about TEXT NOT NULL,
    blake3 TEXT NOT NULL,
    PRIMARY KEY (tenant, number)
);
