-- What a turn made of a review was asked: ids of inline comments, and the review's own id, negated, for its own text.
alter table turns add column review_parts bigint[] not null default '{}';
