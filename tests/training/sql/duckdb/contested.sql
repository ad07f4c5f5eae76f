WITH torn AS (
  SELECT
    text_id
  FROM offers
  WHERE
    NOT label IS NULL AND NOT text_id IS NULL
  GROUP BY
    text_id
  HAVING
    MIN(label) <> MAX(label)
), votes AS (
  SELECT
    o.text_id,
    o.label,
    COUNT(*) AS votes
  FROM offers AS o
  JOIN torn AS t
    ON t.text_id = o.text_id
  WHERE
    NOT o.label IS NULL
  GROUP BY
    o.text_id,
    o.label
), placed AS (
  SELECT
    text_id,
    label,
    votes,
    ROW_NUMBER() OVER (PARTITION BY text_id ORDER BY votes DESC, label) AS place,
    COUNT(*) OVER (PARTITION BY text_id, votes) AS level
  FROM votes
)
SELECT
  text_id,
  CASE WHEN level = 1 THEN label ELSE NULL END AS label
FROM placed
WHERE
  place = 1
