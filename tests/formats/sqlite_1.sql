PRAGMA application_id = 1850503024;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE binding (
        number INTEGER PRIMARY KEY,
        key TEXT NOT NULL UNIQUE,
        session TEXT NOT NULL
    );
INSERT INTO "binding" VALUES(1,'tg:1','cut');
INSERT INTO "binding" VALUES(2,'tg:2','unsent');
INSERT INTO "binding" VALUES(3,'tg:3','behind');
CREATE TABLE entry (
        session INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        value TEXT NOT NULL,
        UNIQUE (session, seq)
    );
INSERT INTO "entry" VALUES(1,1,'{"id":"18e9762df1eaadffca644329ed3a9aed","type":"message","timestamp":"2026-11-19T13:44:26.188159Z","content":{"role":"user","text":"Book it"},"metadata":{"message_id":"m1"}}');
INSERT INTO "entry" VALUES(1,2,'{"id":"18e9762df1f208950a6f7036cca21f0d","type":"tool_call","timestamp":"2026-11-19T13:44:26.188633Z","content":{"tool":"book","parameters":{"seat":"4"}},"metadata":{"tool_call_id":"c1"}}');
INSERT INTO "entry" VALUES(2,1,'{"id":"18e9762df21de99bd75642d575b4fc0d","type":"message","timestamp":"2026-11-19T13:44:26.191510Z","content":{"role":"user","text":"Hi"},"metadata":{"message_id":"m1"}}');
INSERT INTO "entry" VALUES(2,2,'{"id":"18e9762df25f480b34a09a9ffa1898ab","type":"message","timestamp":"2026-11-19T13:44:26.195793Z","content":{"role":"assistant","text":"Hello"},"metadata":{}}');
INSERT INTO "entry" VALUES(3,1,'{"id":"18e9762df26e687e694f5171363d28f6","type":"message","timestamp":"2026-11-19T13:44:26.196784Z","content":{"role":"user","text":"message 0"},"metadata":{"message_id":"m0"}}');
INSERT INTO "entry" VALUES(3,2,'{"id":"18e9762df26ef49605c0e999f403279e","type":"message","timestamp":"2026-11-19T13:44:26.196819Z","content":{"role":"user","text":"message 1"},"metadata":{"message_id":"m1"}}');
INSERT INTO "entry" VALUES(3,3,'{"id":"18e9762df26f3c19f7ed65cc8da6dbd2","type":"message","timestamp":"2026-11-19T13:44:26.196836Z","content":{"role":"user","text":"message 2"},"metadata":{"message_id":"m2"}}');
INSERT INTO "entry" VALUES(3,4,'{"id":"18e9762df26f7497443cbd704d6bd048","type":"message","timestamp":"2026-11-19T13:44:26.196850Z","content":{"role":"user","text":"message 3"},"metadata":{"message_id":"m3"}}');
INSERT INTO "entry" VALUES(3,5,'{"id":"18e9762df26fc23fa5bd3cfd458d2503","type":"message","timestamp":"2026-11-19T13:44:26.196870Z","content":{"role":"user","text":"message 4"},"metadata":{"message_id":"m4"}}');
INSERT INTO "entry" VALUES(3,6,'{"id":"18e9762df26ffe9c1eec0ed2f617abb9","type":"message","timestamp":"2026-11-19T13:44:26.196886Z","content":{"role":"user","text":"message 5"},"metadata":{"message_id":"m5"}}');
INSERT INTO "entry" VALUES(3,7,'{"id":"18e9762df27032363ae008cbdf741d90","type":"message","timestamp":"2026-11-19T13:44:26.196899Z","content":{"role":"user","text":"message 6"},"metadata":{"message_id":"m6"}}');
INSERT INTO "entry" VALUES(3,8,'{"id":"18e9762df270620416b069fed4f36049","type":"message","timestamp":"2026-11-19T13:44:26.196911Z","content":{"role":"user","text":"message 7"},"metadata":{"message_id":"m7"}}');
INSERT INTO "entry" VALUES(3,9,'{"id":"18e9762df2709236318ce4450c94592f","type":"message","timestamp":"2026-11-19T13:44:26.196923Z","content":{"role":"user","text":"message 8"},"metadata":{"message_id":"m8"}}');
INSERT INTO "entry" VALUES(3,10,'{"id":"18e9762df270c22df5eca41210487c27","type":"message","timestamp":"2026-11-19T13:44:26.196935Z","content":{"role":"user","text":"message 9"},"metadata":{"message_id":"m9"}}');
INSERT INTO "entry" VALUES(3,11,'{"id":"18e9762df27512ff0796a4f69e70d903","type":"message","timestamp":"2026-11-19T13:44:26.197220Z","content":{"role":"user","text":"message 10"},"metadata":{"message_id":"m10"}}');
INSERT INTO "entry" VALUES(3,12,'{"id":"18e9762df27561336144cad5e868104f","type":"message","timestamp":"2026-11-19T13:44:26.197238Z","content":{"role":"user","text":"message 11"},"metadata":{"message_id":"m11"}}');
INSERT INTO "entry" VALUES(3,13,'{"id":"18e9762df275983e172970d0d4f88903","type":"message","timestamp":"2026-11-19T13:44:26.197253Z","content":{"role":"user","text":"message 12"},"metadata":{"message_id":"m12"}}');
INSERT INTO "entry" VALUES(3,14,'{"id":"18e9762df275cbd8e410a5bb27f1971e","type":"message","timestamp":"2026-11-19T13:44:26.197266Z","content":{"role":"user","text":"message 13"},"metadata":{"message_id":"m13"}}');
INSERT INTO "entry" VALUES(3,15,'{"id":"18e9762df275fd0fc2653bb51de30344","type":"message","timestamp":"2026-11-19T13:44:26.197278Z","content":{"role":"user","text":"message 14"},"metadata":{"message_id":"m14"}}');
INSERT INTO "entry" VALUES(3,16,'{"id":"18e9762df2762f22a84245dc554a514e","type":"message","timestamp":"2026-11-19T13:44:26.197291Z","content":{"role":"user","text":"message 15"},"metadata":{"message_id":"m15"}}');
INSERT INTO "entry" VALUES(3,17,'{"id":"18e9762df2765da68d87ffe854408016","type":"message","timestamp":"2026-11-19T13:44:26.197303Z","content":{"role":"user","text":"message 16"},"metadata":{"message_id":"m16"}}');
INSERT INTO "entry" VALUES(3,18,'{"id":"18e9762df2768d105086b0ccfdb2e6eb","type":"message","timestamp":"2026-11-19T13:44:26.197315Z","content":{"role":"user","text":"message 17"},"metadata":{"message_id":"m17"}}');
INSERT INTO "entry" VALUES(3,19,'{"id":"18e9762df276bf1a34cc0655c6a4cefe","type":"message","timestamp":"2026-11-19T13:44:26.197328Z","content":{"role":"user","text":"message 18"},"metadata":{"message_id":"m18"}}');
INSERT INTO "entry" VALUES(3,20,'{"id":"18e9762df276f032b25e9836c79b256b","type":"message","timestamp":"2026-11-19T13:44:26.197340Z","content":{"role":"user","text":"message 19"},"metadata":{"message_id":"m19"}}');
INSERT INTO "entry" VALUES(3,21,'{"id":"18e9762df27b26ed2729e14d59f8ff96","type":"message","timestamp":"2026-11-19T13:44:26.197618Z","content":{"role":"user","text":"message 20"},"metadata":{"message_id":"m20"}}');
INSERT INTO "entry" VALUES(3,22,'{"id":"18e9762df27b79820c12f27fc05e1268","type":"message","timestamp":"2026-11-19T13:44:26.197638Z","content":{"role":"user","text":"message 21"},"metadata":{"message_id":"m21"}}');
INSERT INTO "entry" VALUES(3,23,'{"id":"18e9762df27bb09707512ee710455277","type":"message","timestamp":"2026-11-19T13:44:26.197652Z","content":{"role":"user","text":"message 22"},"metadata":{"message_id":"m22"}}');
INSERT INTO "entry" VALUES(3,24,'{"id":"18e9762df27be2510f8897b4f6e26a9e","type":"message","timestamp":"2026-11-19T13:44:26.197665Z","content":{"role":"user","text":"message 23"},"metadata":{"message_id":"m23"}}');
INSERT INTO "entry" VALUES(4,1,'{"id":"18e9762df28c9b6d58ed0debbfae8b93","type":"message","timestamp":"2026-11-19T13:44:26.198763Z","content":{"role":"user","text":"Bye"},"metadata":{"message_id":"m7"}}');
INSERT INTO "entry" VALUES(4,2,'{"id":"18e9762df28d5807643b779f903cfa0e","type":"message","timestamp":"2026-11-19T13:44:26.198809Z","content":{"role":"assistant","text":"Bye"},"metadata":{}}');
INSERT INTO "entry" VALUES(5,1,'{"id":"18e9762df296643ceeded7baf14637f2","type":"message","timestamp":"2026-11-19T13:44:26.199403Z","content":{"role":"user","text":"Hm"},"metadata":{"message_id":"m8"}}');
CREATE TABLE heard (
        session INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        message_id TEXT NOT NULL,
        PRIMARY KEY (session, seq)
    ) WITHOUT ROWID
    ;
INSERT INTO "heard" VALUES(1,1,'m1');
INSERT INTO "heard" VALUES(2,1,'m1');
INSERT INTO "heard" VALUES(3,1,'m0');
INSERT INTO "heard" VALUES(3,2,'m1');
INSERT INTO "heard" VALUES(3,3,'m2');
INSERT INTO "heard" VALUES(3,4,'m3');
INSERT INTO "heard" VALUES(3,5,'m4');
INSERT INTO "heard" VALUES(3,6,'m5');
INSERT INTO "heard" VALUES(3,7,'m6');
INSERT INTO "heard" VALUES(3,8,'m7');
INSERT INTO "heard" VALUES(3,9,'m8');
INSERT INTO "heard" VALUES(3,10,'m9');
INSERT INTO "heard" VALUES(3,11,'m10');
INSERT INTO "heard" VALUES(3,12,'m11');
INSERT INTO "heard" VALUES(3,13,'m12');
INSERT INTO "heard" VALUES(3,14,'m13');
INSERT INTO "heard" VALUES(3,15,'m14');
INSERT INTO "heard" VALUES(3,16,'m15');
INSERT INTO "heard" VALUES(3,17,'m16');
INSERT INTO "heard" VALUES(3,18,'m17');
INSERT INTO "heard" VALUES(3,19,'m18');
INSERT INTO "heard" VALUES(3,20,'m19');
INSERT INTO "heard" VALUES(3,21,'m20');
INSERT INTO "heard" VALUES(3,22,'m21');
INSERT INTO "heard" VALUES(3,23,'m22');
INSERT INTO "heard" VALUES(3,24,'m23');
INSERT INTO "heard" VALUES(4,1,'m7');
INSERT INTO "heard" VALUES(5,1,'m8');
CREATE TABLE section (
        session INTEGER NOT NULL,
        name TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (session, name)
    ) WITHOUT ROWID
    ;
INSERT INTO "section" VALUES(1,'about','{"id":"cut","key":"tg:1","created_at":"2026-11-19T12:00:01Z","agent":"poet","title":"Book it"}');
INSERT INTO "section" VALUES(1,'waiting','[{"id":"18e9762df1f5d3ec70885f2a60223f63","type":"message","timestamp":"2026-11-19T13:44:26.188881Z","content":{"role":"user","text":"And a taxi"},"metadata":{"message_id":"m2"}},{"id":"18e9762df1f626827a7930ec965c6c07","type":"message","timestamp":"2026-11-19T13:44:26.188900Z","content":{"role":"user","text":"/new"},"metadata":{"message_id":"m3","origin":"command"}}]');
INSERT INTO "section" VALUES(2,'about','{"id":"unsent","key":"tg:2","created_at":"2026-11-19T12:00:10Z","title":"Hi","ttl":315360000}');
INSERT INTO "section" VALUES(3,'about','{"id":"behind","key":"tg:3","created_at":"2026-11-19T12:00:19Z","title":"message 0"}');
INSERT INTO "section" VALUES(3,'heard','["noted 1","noted 2"]');
INSERT INTO "section" VALUES(3,'summary','{"value":"the first ones","seq":9}');
INSERT INTO "section" VALUES(4,'about','{"id":"idle","created_at":"2026-11-19T12:00:51Z","title":"Bye"}');
INSERT INTO "section" VALUES(5,'about','{"id":"over","created_at":"2026-11-19T12:00:55Z","title":"Hm","ttl":5}');
CREATE TABLE session (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        rev INTEGER NOT NULL,
        shown_from INTEGER NOT NULL, -- the lowest seq that the window shows
        updated_at INTEGER NOT NULL, -- in microseconds since 1970, as the next
        expires_at INTEGER,
        size INTEGER NOT NULL, -- bytes of its entries
        head TEXT NOT NULL
    );
INSERT INTO "session" VALUES(1,'cut',1707190661,1,1795089608000000,NULL,361,'{"rev":1707190661,"updated_at":"2026-11-19T12:00:08Z","epoch":0,"start":1,"last":2,"window":1,"covered":0,"turns":0,"count":2,"awaiting":1,"waiting":2,"commit":"6Jz7W-Sj3lw"}');
INSERT INTO "session" VALUES(2,'unsent',611263499,1,1795089617000000,2110449611000000,329,'{"rev":611263499,"updated_at":"2026-11-19T12:00:17Z","expires_at":"2036-11-16T12:00:11Z","epoch":0,"start":1,"last":2,"window":1,"covered":0,"turns":1,"count":2,"unsent":[2],"commit":"nHnLdCoczzo"}');
INSERT INTO "session" VALUES(3,'behind',558978503,19,1795089649000000,NULL,4252,'{"rev":558978503,"updated_at":"2026-11-19T12:00:49Z","epoch":0,"start":1,"last":24,"window":19,"covered":9,"turns":0,"count":24,"commit":"dxgZeNwzvik"}');
INSERT INTO "session" VALUES(4,'idle',1162614702,1,1795089653000000,NULL,328,'{"rev":1162614702,"updated_at":"2026-11-19T12:00:53Z","epoch":0,"start":1,"last":2,"window":1,"covered":0,"turns":1,"count":2,"commit":"B6FBjPHFuPg"}');
INSERT INTO "session" VALUES(5,'over',1655568911,1,1795089658000000,1795089661000000,169,'{"rev":1655568911,"updated_at":"2026-11-19T12:00:58Z","expires_at":"2026-11-19T12:01:01Z","epoch":0,"start":1,"last":1,"window":1,"covered":0,"turns":0,"count":1,"awaiting":1,"commit":"3ESuhCj-h_I"}');
CREATE INDEX session_by_time ON session (updated_at, expires_at);
CREATE INDEX session_by_end ON session (expires_at) WHERE expires_at IS NOT NULL;
COMMIT;
