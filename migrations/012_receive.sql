-- What the receive step needs to tell a comment that cannot concern the bot, and to store a body cheaply.

-- Every name that a worker has answered to. Empty: it is not known, and every comment is decided on.
create table bot_names (name text primary key);

-- The default compression costs more than all else that storing a delivery does. Counts for new rows only.
do $$
begin
    if exists (select from pg_settings where name = 'default_toast_compression' and 'lz4' = any (enumvals)) then
        alter table deliveries alter column body set compression lz4;
    else
        alter table deliveries alter column body set storage external;
    end if;
end
$$;
